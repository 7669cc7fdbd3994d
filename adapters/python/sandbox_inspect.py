"""Sandboxes for inspect_ai, by the command line "sandbox".

Import this module where a task is defined, and name the environment there, with an image if it is not
the default one:

    import sandbox_inspect
    Task(..., sandbox=("sandbox", "python:3.12"))

Each sample gets a sandbox of its own, which connects to nothing outside (SANDBOX_INSPECT_NETWORK has another
network policy) and is deleted with its volumes afterwards. "inspect sandbox cleanup sandbox" deletes
what is left of runs that were killed. What a command leaves in the background ends with it, so that the
tool bash_session can't be used. Standard library only. The program is SANDBOX_PROGRAM, by default "sandbox".
"""

import os
import time

from inspect_ai.util import ExecResult, OutputLimitExceededError, SandboxEnvironment, sandboxenv

from sandbox_cli import MIB, OUTPUT_LIMIT, SandboxError, TooLong, call, delete, environment, manage

FILE_LIMIT = 100 * MIB
TAG = "inspect"

# Exit codes of the scripts below. No shell uses them.
IS_DIRECTORY, NO_PERMISSION, NOT_FOUND = 61, 62, 63

WRITE = f"""if [ -d "$1" ]; then exit {IS_DIRECTORY}; fi
mkdir -p "$(dirname "$1")" && cat >"$1" || exit {NO_PERMISSION}"""

READ = f"""if [ -d "$1" ]; then exit {IS_DIRECTORY}; fi
if [ ! -e "$1" ]; then exit {NOT_FOUND}; fi
if [ ! -f "$1" ] || [ ! -r "$1" ]; then exit {NO_PERMISSION}; fi
cat "$1" """


@sandboxenv(name="sandbox")
class Sandbox(SandboxEnvironment):
    """One sandbox. A relative path is relative to /workspace."""

    def __init__(self, name):
        self.name = name

    @classmethod
    async def sample_init(cls, task_name, config, metadata):
        args = ["create", "--json", "--quiet", "--tag", f"{TAG}=yes", "--network", os.environ.get("SANDBOX_INSPECT_NETWORK", "deny-all")]
        if config is not None:
            args += ["--image", str(config)]
        return {"default": cls((await manage(*args))["name"])}

    @classmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted):
        await delete(*(e.name for e in environments.values()))

    @classmethod
    async def cli_cleanup(cls, id):
        all = await manage("list", "--json")
        await delete(*(s["name"] for s in all if s.get("tags", {}).get(TAG) and id in (None, s["name"])))

    async def exec(self, cmd, input=None, cwd=None, env={}, user=None, timeout=None, timeout_retry=True, concurrency=True):
        flags, values = environment(env)
        args = ["exec", "--quiet", *flags]
        if cwd is not None:
            args += ["--workdir", cwd]
        if user is not None:
            args += ["--user", user]
        if timeout is not None:
            args += ["--timeout", f"{timeout}s"]
        if input is not None:
            args.append("--interactive")
        if isinstance(input, str):
            input = input.encode()
        began = time.monotonic()
        try:
            code, out, err = await call([*args, self.name, "--", *cmd], input, values)
        except TooLong as e:
            raise OutputLimitExceededError(f"{OUTPUT_LIMIT // MIB} MiB", e.args[0].decode(errors="replace")) from None
        if timeout is not None and code == 137 and time.monotonic() - began >= timeout:
            raise TimeoutError(f"the command took longer than {timeout} s")
        message = err.decode(errors="replace")
        if code == 125 and message.startswith("sandbox: "):
            raise SandboxError(message.strip())
        if code == 126 and message.startswith("sandbox: "):
            raise PermissionError(message.strip())
        return ExecResult(code == 0, code, out.decode(), err.decode())

    async def write_file(self, file, contents):
        data = contents.encode() if isinstance(contents, str) else contents
        await self._file(WRITE, file, data)

    async def read_file(self, file, text=True):
        data = await self._file(READ, file, None)
        return data.decode() if text else data

    async def _file(self, script, file, data):
        args = ["exec", "--quiet"] + (["--interactive"] if data is not None else [])
        try:
            code, out, err = await call([*args, self.name, "--", "sh", "-c", script, "sh", file], data, limit=FILE_LIMIT)
        except TooLong:
            raise OutputLimitExceededError(f"{FILE_LIMIT // MIB} MiB", None) from None
        message = err.decode(errors="replace").strip()
        known = {IS_DIRECTORY: IsADirectoryError, NO_PERMISSION: PermissionError, NOT_FOUND: FileNotFoundError}
        if code in known:
            raise known[code](f"{file}: {message or known[code].__name__}")
        if code != 0:
            raise SandboxError(message)
        return out
