"""A taskset of the real package, and an environment that asks again."""

import verifiers.v1 as vf


class CountingData(vf.TaskData):
    """The number to say."""

    answer: str = ""


class CountingTask(vf.Task[CountingData]):
    """Right where the last reply has the number."""

    @vf.reward
    async def right(self, trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))


class CountingTaskset(vf.Taskset[CountingTask]):
    """Three numbers."""

    def load(self):
        for number in range(3):
            yield CountingTask(CountingData(prompt=f"count to {number}", answer=str(number)), self.config.task)


class CountingEnv(vf.Env[vf.SingleAgentEnvConfig]):
    """Asks once more where the number is wrong."""

    async def run(self, task, agents):
        async with agents.agent.interaction(task) as talk:
            said = await talk.turn()
            if task.data.answer not in said.last_reply:
                await talk.turn("no, again")


__all__ = ["CountingEnv", "CountingTaskset"]
