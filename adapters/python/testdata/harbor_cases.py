"""A trial's life in a sandbox: the calls that Harbor makes, by its base class."""

import asyncio
import sys
import tempfile
from pathlib import Path

import sandbox_harbor
from harbor.environments.base import Config, Policy


async def raises(error, call):
    try:
        got = await call
    except error as e:
        return e
    raise AssertionError(f"{got!r}, want {error.__name__}")


def make(directory, config, **kwargs):
    return sandbox_harbor.Sandbox(environment_dir=directory, environment_name="t", session_id="t__1", trial_paths=None, task_env_config=config, **kwargs)


async def main():
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        for config in (Config(), Config(docker_image="x")):
            if config.docker_image:
                (directory / "docker-compose.yaml").write_text("")
            try:
                make(directory, config)
            except (FileNotFoundError, ValueError):
                continue
            raise AssertionError("a task without an image, or of several containers, is taken")
        (directory / "docker-compose.yaml").unlink()
        (directory / "Dockerfile").write_text("FROM node:20-bookworm\nWORKDIR /app\nWORKDIR sub\nRUN echo built >there\n")
        box = make(directory, Config(cpus=1, memory_mb=512, policy=Policy("no-network")), persistent_env={"A": "always"})
        try:
            await box.start(False)
            print(box._name, flush=True)
            await use(box, directory)
        finally:
            await box.stop(True)
        await raises(sandbox_harbor.SandboxError, failing(directory))


async def failing(directory):
    box = make(directory, Config(docker_image="no-such-image:0"))
    try:
        await box.start(False)
    finally:
        await box.stop(True)


async def use(box, directory):
    r = await box.exec("pwd; cat there; echo $A $B; echo err >&2; [[ a == a ]] && exit 3", env={"B": "now"})
    assert (r.return_code, r.stdout, r.stderr) == (3, "/app/sub\nbuilt\nalways now\n", "err\n"), r
    r = await box.exec("id -un; pwd", user="node", cwd="/tmp")
    assert r.stdout == "node\n/tmp\n", r
    box.default_user = 1000
    r = await box.exec("id -u; touch /logs/agent/log /logs/verifier/log")
    assert (r.return_code, r.stdout) == (0, "1000\n"), r
    box.default_user = None
    r = await box.exec("cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max")
    assert r.stdout == f"{512 << 20}\n", r
    await raises(RuntimeError, box.exec("sleep 1000", timeout_sec=1))
    await raises(sandbox_harbor.SandboxError, box.exec("yes"))
    here = directory / "here"
    (here / "sub").mkdir(parents=True)
    (here / "sub" / "f").write_text("one")
    await box.upload_file(here / "sub" / "f", "/new/deep/f")
    await box.upload_dir(here, "/tests")
    r = await box.exec("cat /new/deep/f /tests/sub/f; echo two >/tests/sub/g")
    assert r.stdout == "oneone", r
    await box.download_dir("/tests", directory / "back")
    await box.download_file("/tests/sub/g", directory / "other" / "g")
    assert (directory / "back" / "sub" / "g").read_text() == "two\n" == (directory / "other" / "g").read_text()
    await raises(sandbox_harbor.SandboxError, box.download_file("/nothing", directory / "nothing"))
    for policy, want in (
        (Policy("allowlist", ["registry.test", "192.0.2.1"]), "allow=registry.test subnets.allow=192.0.2.1/32"),
        (Policy("allowlist"), "deny-all"),
        (Policy("public"), "public-only"),
    ):
        assert sandbox_harbor.network(policy) == want, policy
        await box.apply_network_policy(policy)
    await box.stop(False)
    r = await box.exec("cat /tests/sub/g")  # which starts it again
    assert r.stdout == "two\n", r


asyncio.run(asyncio.wait_for(main(), 1200))
sys.exit(0)
