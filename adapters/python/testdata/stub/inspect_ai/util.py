"""What sandbox_inspect needs of inspect_ai.util: the same names, signatures and errors."""

import abc
from dataclasses import dataclass

registered = {}


@dataclass
class ExecResult:
    success: bool
    returncode: int
    stdout: str
    stderr: str


class OutputLimitExceededError(Exception):
    def __init__(self, limit_str, truncated_output):
        super().__init__(limit_str)
        self.limit_str, self.truncated_output = limit_str, truncated_output


class SandboxEnvironment(abc.ABC):
    @classmethod
    async def sample_init(cls, task_name, config, metadata):
        return {}

    @classmethod
    @abc.abstractmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted): ...

    @classmethod
    async def cli_cleanup(cls, id): ...

    @abc.abstractmethod
    async def exec(self, cmd, input=None, cwd=None, env={}, user=None, timeout=None): ...

    @abc.abstractmethod
    async def write_file(self, file, contents): ...

    @abc.abstractmethod
    async def read_file(self, file, text=True): ...


def sandboxenv(name):
    def register(cls):
        registered[name] = cls
        return cls

    return register
