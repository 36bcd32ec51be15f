# A runner that must touch a target, which is on the ground or so high that the runner must jump.
extends Spatial

const SPEED = 6.0 # the largest, of the runner
const JUMP = 7.0 # upward speed at the start of a jump
const GRAVITY = 18.0
const HALF = 4.5 # half of the width of the arena
const HEIGHTS = [0.5, 2.6] # of a target
const REACH = 1.0 # the distance from which the runner touches a target
const MAX_STEPS = 600 # physics ticks

var reward = 0.0
var done = false
var truncated = false
var steps = 0
var velocity = Vector3()
var move = Vector2()
var jump = false

onready var runner = $Runner
onready var target = $Target


func _ready():
	add_to_group("AGENT")
	reset()


func get_action_space():
	return {
		"move": {"size": 2, "action_type": "continuous"},
		"jump": {"size": 2, "action_type": "discrete"},
	}


func get_obs():
	var position = runner.translation
	var way = target.translation - position
	return {"obs": [
		position.x / HALF, position.y / 2, position.z / HALF,
		velocity.x / SPEED, velocity.y / JUMP, velocity.z / SPEED,
		way.x / HALF, way.y / 2, way.z / HALF,
		1.0 if runner.is_on_floor() else 0.0
	]}


func set_action(action):
	move = Vector2(action["move"][0], action["move"][1])
	jump = int(action["jump"]) == 1


func reset():
	runner.translation = Vector3(rand_range(-HALF, HALF), 0.5, rand_range(-HALF, HALF))
	target.translation = Vector3(rand_range(-HALF, HALF), HEIGHTS[randi() % 2], rand_range(-HALF, HALF))
	velocity = Vector3()
	steps = 0


func _physics_process(delta):
	if done:
		return
	velocity = Vector3(SPEED * move.x, velocity.y - GRAVITY * delta, SPEED * move.y)
	if jump and runner.is_on_floor():
		velocity.y = JUMP
	velocity = runner.move_and_slide(velocity, Vector3.UP)
	steps += 1
	if runner.translation.distance_to(target.translation) < REACH:
		reward += 1.0
		done = true
	elif runner.translation.y < -2: # it fell off the floor
		reward -= 1.0
		done = true
	else:
		reward -= 0.001
		if steps >= MAX_STEPS:
			done = true
			truncated = true
