"""Environments, vectorised, behind one registry and with one convention for the ends of episodes.

- An observation is a stack of frames, oldest first: (stack, *frame_shape), also where the stack is 1. Frames before an
  episode's first are zero.
- `step` is Gymnasium's, with SAME_STEP autoreset: where an episode ended, the observation that is returned is the first
  of the next episode, and `info["final_obs"][i]` is the true last one. `info["_final_obs"]` marks the rows of
  `final_obs` that mean something; neither key is there when no episode ended.
- `terminated` and `truncated` are never both set for one step: an episode that ends by itself on the step of the time
  limit has terminated. Every step is a transition; no step only resets.
- Rewards are raw, as float32.
"""
