# Connects the agents of a scene with a trainer: the scene's side of the protocol of Godot RL Agents, for Godot 3.
#
# Add a node with this script to the scene. Its agents are the nodes of the group AGENT, with these methods:
#
#   get_action_space()  {name: {"size": n, "action_type": "continuous" or "discrete"}}
#   get_obs()           {name: an array of numbers}
#   set_action(action)  receives {name: an array of numbers in [-1, 1], or the number of a discrete action}
#   reset()             starts an episode
#   get_obs_space()     {name: {"size": [n], "space": "box"}}; without it, the sizes of the first observation
#
# and these variables:
#
#   reward              the sum of the rewards since the last decision, which this script sets to 0
#   done                whether the episode has ended; this script then resets the agent
#   truncated           whether that was due to a limit of time rather than to the task; not needed
#   policy_name         agents with the same name share a policy; not needed
#
# Without a trainer the scene runs on its own.
extends Node

const PORT = 11008

export var action_repeat = 1 # physics ticks between two decisions
export var speedup = 8 # physics ticks in each frame

var _stream = StreamPeerTCP.new()
var _agents = []
var _ticks = 0
var _owes_step = false # whether the trainer awaits the result of its actions


func _ready():
	var arguments = _read_arguments()
	action_repeat = int(arguments.get("action_repeat", action_repeat))
	speedup = int(arguments.get("speedup", speedup))
	seed(int(arguments.get("env_seed", 1)))
	_stream.connect_to_host("127.0.0.1", int(arguments.get("port", PORT)))
	while _stream.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		OS.delay_msec(10)
	if _stream.get_status() != StreamPeerTCP.STATUS_CONNECTED:
		print("no trainer listens: the scene runs without one")
		set_physics_process(false)
		return
	_stream.set_no_delay(true)
	process_priority = -1000 # before the agents, which execute their actions in the same tick
	OS.low_processor_usage_mode_sleep_usec = 1 # or the server would sleep for 7 ms in each frame
	Engine.iterations_per_second = ProjectSettings.get_setting("physics/common/physics_fps") * speedup
	Engine.time_scale = speedup


func _physics_process(_delta):
	if not _agents:
		_begin()
	if _ticks % action_repeat == 0:
		if _owes_step:
			_send_step()
		_answer()
	_ticks += 1


# Exchange the first messages, when all nodes of the scene are ready.
func _begin():
	_agents = get_tree().get_nodes_in_group("AGENT")
	var names = []
	var observation_spaces = []
	var action_spaces = []
	for agent in _agents:
		var policy = agent.get("policy_name")
		names.append(policy if policy else "shared_policy")
		observation_spaces.append(_get_obs_space(agent))
		action_spaces.append(agent.get_action_space())
	_receive() # the version of the trainer
	_receive() # its request
	_send({
		"type": "env_info",
		"n_agents": len(_agents),
		"agent_policy_names": names,
		"observation_space": observation_spaces,
		"action_space": action_spaces,
	})


func _get_obs_space(agent):
	if agent.has_method("get_obs_space"):
		return agent.get_obs_space()
	var space = {}
	var obs = agent.get_obs()
	for name in obs:
		space[name] = {"size": [len(obs[name])], "space": "box"}
	return space


func _send_step():
	var reply = {"type": "step", "obs": [], "reward": [], "done": [], "truncated": [], "final_obs": []}
	for agent in _agents:
		var truncated = agent.done and agent.get("truncated") == true
		reply["reward"].append(agent.reward)
		reply["done"].append(agent.done)
		reply["truncated"].append(truncated)
		reply["final_obs"].append(agent.get_obs() if truncated else null)
		_start(agent, agent.done)
		reply["obs"].append(agent.get_obs())
	_owes_step = false
	_send(reply)


# Start the next sum of an agent's rewards, and an episode.
func _start(agent, is_new_episode):
	agent.reward = 0.0
	if is_new_episode:
		agent.done = false
		if "truncated" in agent:
			agent.truncated = false
		agent.reset()


# Answer messages until one has actions.
func _answer():
	while true:
		var message = _receive()
		match message.get("type"):
			"action":
				for i in range(len(_agents)):
					_agents[i].set_action(message["action"][i])
				_owes_step = true
				return
			"reset":
				var obs = []
				for agent in _agents:
					_start(agent, true)
					obs.append(agent.get_obs())
				_send({"type": "reset", "obs": obs})
			_: # close, or the trainer has ended
				get_tree().quit()
				set_physics_process(false)
				return


func _receive():
	var text = _stream.get_utf8_string()
	if not text:
		return {"type": "close"}
	return JSON.parse(text).result


func _send(message):
	_stream.put_utf8_string(JSON.print(message))


# Return the arguments --name=value of the command line.
func _read_arguments():
	var arguments = {}
	for argument in OS.get_cmdline_args():
		var parts = argument.lstrip("-").split("=", true, 1)
		if len(parts) == 2:
			arguments[parts[0]] = parts[1]
	return arguments
