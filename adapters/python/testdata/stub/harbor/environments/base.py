"""What sandbox_harbor needs of harbor.environments.base: the same names, signatures and abstract methods."""

import abc
from dataclasses import dataclass, field


@dataclass
class ExecResult:
    return_code: int
    stdout: str | None = None
    stderr: str | None = None


@dataclass
class Policy:
    network_mode: str = "public"
    allowed_hosts: list = field(default_factory=list)


@dataclass
class Config:
    docker_image: str | None = None
    cpus: int = 1
    memory_mb: int = 2048
    gpus: int = 0
    build_timeout_sec: float = 600.0
    policy: Policy = field(default_factory=Policy)

    def resolve_baseline(self):
        return self.policy


class BaseEnvironment(abc.ABC):
    def __init__(self, environment_dir, environment_name, session_id, trial_paths, task_env_config, persistent_env=None, **kwargs):
        self.environment_dir, self.task_env_config = environment_dir, task_env_config
        self._persistent_env, self.default_user = persistent_env or {}, None
        self._validate_definition()

    def _resolve_user(self, user):
        return user if user is not None else self.default_user

    def _merge_env(self, env):
        return {**self._persistent_env, **(env or {})} or None

    @staticmethod
    @abc.abstractmethod
    def type(): ...

    @property
    @abc.abstractmethod
    def is_mounted(self): ...

    @property
    @abc.abstractmethod
    def supports_gpus(self): ...

    @property
    @abc.abstractmethod
    def can_disable_internet(self): ...

    @abc.abstractmethod
    def _validate_definition(self): ...

    @abc.abstractmethod
    async def start(self, force_build): ...

    @abc.abstractmethod
    async def stop(self, delete): ...

    @abc.abstractmethod
    async def upload_file(self, source_path, target_path): ...

    @abc.abstractmethod
    async def upload_dir(self, source_dir, target_dir): ...

    @abc.abstractmethod
    async def download_file(self, source_path, target_path): ...

    @abc.abstractmethod
    async def download_dir(self, source_dir, target_dir): ...

    @abc.abstractmethod
    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None): ...
