"""PPO whose evaluation has other environments, its own phase and a remote runner's single thread.

    autocompile tune studies/workloads/ppo_evaluation.py:config --budget 2m \
        --phase forward_exploration,forward_inference
"""

from ray.rllib.algorithms.ppo import PPOConfig

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=0, num_envs_per_env_runner=16)
    .evaluation(
        evaluation_interval=1,
        evaluation_num_env_runners=1,
        evaluation_config={"explore": False, "num_envs_per_env_runner": 4},
    )
)
