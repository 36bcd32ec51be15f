# A plate that tilts about two axes, and a ball that must stay on it.
extends Spatial

const MAX_TILT = 0.44 # of the plate, in radians
const TILT_PER_STEP = 0.05 # of a full action
const START = 1.5 # the largest distance from the centre, along each axis, at which a ball starts
const EDGE = 2.5 # half of the plate's width
const MAX_STEPS = 500 # physics ticks

var reward = 0.0
var done = false
var truncated = false
var steps = 0
var tilt = Vector2() # about the axes x and z

onready var plate = $Plate
onready var ball = $Ball


func _ready():
	add_to_group("AGENT")
	reset()


func get_action_space():
	return {"tilt": {"size": 2, "action_type": "continuous"}}


func get_obs():
	var position = ball.translation
	var velocity = ball.linear_velocity
	return {"obs": [
		tilt.x / MAX_TILT, tilt.y / MAX_TILT,
		position.x / EDGE, position.y / EDGE, position.z / EDGE,
		velocity.x / 5, velocity.y / 5, velocity.z / 5
	]}


func set_action(action):
	var change = Vector2(action["tilt"][0], action["tilt"][1]) * TILT_PER_STEP
	tilt.x = clamp(tilt.x + change.x, -MAX_TILT, MAX_TILT)
	tilt.y = clamp(tilt.y + change.y, -MAX_TILT, MAX_TILT)


func reset():
	tilt = Vector2(rand_range(-0.1, 0.1), rand_range(-0.1, 0.1))
	plate.rotation = Vector3(tilt.x, 0, tilt.y)
	ball.translation = Vector3(rand_range(-START, START), 1.5, rand_range(-START, START))
	ball.linear_velocity = Vector3()
	ball.angular_velocity = Vector3()
	steps = 0


func _physics_process(_delta):
	plate.rotation = Vector3(tilt.x, 0, tilt.y)
	if done:
		return
	steps += 1
	if ball.translation.y < -1.5 or max(abs(ball.translation.x), abs(ball.translation.z)) > EDGE + 0.5:
		reward -= 1.0
		done = true
	else:
		reward += 0.1
		if steps >= MAX_STEPS:
			done = true
			truncated = true
