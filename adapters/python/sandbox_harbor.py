"""Sandboxes for Harbor, by the command line "sandbox".

Name the class as the environment of a job:

    harbor run ... --environment-import-path sandbox_harbor:Sandbox

Each trial gets a sandbox of its own with the CPUs, the memory and the network policy of its task. The image
is the task's docker_image; without one it is built from the task's Dockerfile with the command "docker",
and removed with the sandbox. Tasks of several containers (docker-compose.yaml) and GPUs are refused.
What a command leaves in the background ends with it: no server and no tmux session lasts until the next.
Standard library only. The program is SANDBOX_PROGRAM, by default "sandbox".
"""

import asyncio
import ipaddress
import os
import re
import uuid
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.environment_type import EnvironmentType

from sandbox_cli import SandboxError, TooLong, call, delete, environment, manage

# The directories that Harbor writes to and reads from in every environment.
LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")

# bash, where the image has it.
SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$0"; fi; exec sh -c "$0"'


def network(policy):
    """The network policy of a sandbox for one of Harbor's."""
    mode = str(getattr(policy.network_mode, "value", policy.network_mode))
    if mode == "public":
        return "public-only"
    if mode == "no-network":
        return "deny-all"
    if mode != "allowlist":
        raise ValueError(f"network_mode {mode!r} is not known")
    names, subnets = [], []
    for host in policy.allowed_hosts:
        try:
            subnets.append(f"{ipaddress.ip_address(host)}/32")
        except ValueError:
            names.append(host)
    lists = [f"{key}={','.join(value)}" for key, value in (("allow", names), ("subnets.allow", subnets)) if value]
    return " ".join(lists) or "deny-all"


class Sandbox(BaseEnvironment):
    """One sandbox. A relative path is relative to the last WORKDIR of the Dockerfile, or to /."""

    def __init__(self, *args, **kwargs):
        self._name = self._built = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type():
        return EnvironmentType.DOCKER  # the nearest that there is: the image and its network are Docker's

    @property
    def is_mounted(self):
        return False

    @property
    def supports_gpus(self):
        return False

    @property
    def can_disable_internet(self):
        return True

    @property
    def supports_dynamic_network_policy(self):
        return True

    @property
    def _dockerfile(self):
        return Path(self.environment_dir) / "Dockerfile"

    def _validate_definition(self):
        if (Path(self.environment_dir) / "docker-compose.yaml").exists():
            raise ValueError("a task of several containers (docker-compose.yaml) has no sandbox")
        if not self.task_env_config.docker_image and not self._dockerfile.exists():
            raise FileNotFoundError(f"{self._dockerfile} is missing, and the task names no docker_image")

    def _workdir(self):
        if not self._dockerfile.exists():
            return "/"
        found = re.findall(r"^\s*WORKDIR\s+(.+?)\s*$", self._dockerfile.read_text(), re.IGNORECASE | re.MULTILINE)
        at = "/"
        for one in found:  # one that is relative goes on from the one before
            at = os.path.normpath(os.path.join(at, one.strip("\"'")))
        return at

    async def _build(self):
        self._built = f"sandbox-harbor-{uuid.uuid4().hex}"
        code, _, err = await call(
            ["build", "--quiet", "--tag", self._built, str(self.environment_dir)], program="docker", seconds=self.task_env_config.build_timeout_sec
        )
        if code != 0:
            raise SandboxError("docker build: " + err.decode(errors="replace").strip())
        return self._built

    async def start(self, force_build):
        image = self.task_env_config.docker_image
        if force_build and self._dockerfile.exists() or not image:
            image = await self._build()
        made = await manage(
            "create", "--json", "--quiet", "--image", image, "--workdir", self._workdir(), "--tag", "harbor=yes",
            "--vcpus", str(self.task_env_config.cpus), "--memory", f"{self.task_env_config.memory_mb}m",
            "--network", network(self.task_env_config.resolve_baseline()),
        )  # fmt: skip
        self._name = made["name"]
        code, _, err = await call(["exec", "--quiet", "--user", "0", self._name, "--", "sh", "-c", 'mkdir -p "$@" && chmod 777 "$@"', "sh", *LOGS])
        if code != 0:
            raise SandboxError(err.decode(errors="replace").strip())

    async def stop(self, delete: bool):
        if self._name is not None:
            if not delete:
                await manage("stop", "--json", "--", self._name)
                return
            await _delete(self._name)
            self._name = None
        if self._built is not None and delete:
            await call(["image", "rm", self._built], program="docker")
            self._built = None

    async def apply_network_policy(self, policy):
        await manage("network", "--json", self._name, network(policy))

    async def _copy(self, source, target):
        code, _, err = await call(["cp", "--quiet", source, target])
        if code != 0:
            raise SandboxError(err.decode(errors="replace").strip())

    async def upload_file(self, source_path, target_path):
        await self._copy(str(source_path), f"{self._name}:{target_path}")

    async def upload_dir(self, source_dir, target_dir):
        await self._copy(f"{source_dir}/.", f"{self._name}:{target_dir}")

    async def download_file(self, source_path, target_path):
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await self._copy(f"{self._name}:{source_path}", str(target_path))

    async def download_dir(self, source_dir, target_dir):
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        await self._copy(f"{self._name}:{source_dir}/.", str(target_dir))

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        flags, values = environment(self._merge_env(env) or {})
        user = self._resolve_user(user)
        if cwd is not None:
            flags += ["--workdir", str(cwd)]
        if user is not None:
            flags += ["--user", str(user)]
        if timeout_sec is not None:
            flags += ["--timeout", f"{timeout_sec}s"]
        began = asyncio.get_running_loop().time()
        try:
            code, out, err = await call(["exec", "--quiet", *flags, self._name, "--", "sh", "-c", SHELL, command], env=values)
        except TooLong as e:
            raise SandboxError(f"the command wrote more than {len(e.args[0])} bytes") from None
        message = err.decode(errors="replace")
        if timeout_sec is not None and code == 137 and asyncio.get_running_loop().time() - began >= timeout_sec:
            raise RuntimeError(f"the command took longer than {timeout_sec} s")
        if code == 125 and message.startswith("sandbox: "):
            raise SandboxError(message.strip())
        return ExecResult(stdout=out.decode(errors="replace"), stderr=message, return_code=code)


_delete = delete  # stop has an argument of that name
