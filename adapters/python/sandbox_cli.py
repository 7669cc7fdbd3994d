"""The command line "sandbox" for the modules beside it. The program is SANDBOX_PROGRAM, by default "sandbox"."""

import asyncio
import json
import os

MIB = 1 << 20
OUTPUT_LIMIT = 10 * MIB  # of stdout and stderr, each


class SandboxError(RuntimeError):
    """The sandbox or the engine failed, not the command."""


class TooLong(Exception):
    """A stream is longer than its limit; the argument is its beginning."""


async def _read(stream, limit):
    data = bytearray()
    while piece := await stream.read(1 << 16):
        data += piece
        if len(data) > limit:
            raise TooLong(bytes(data[:limit]))
    return bytes(data)


async def _feed(stream, data):
    try:
        stream.write(data)
        await stream.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the command has read enough
    finally:
        stream.close()


async def call(args, data=None, env=None, limit=OUTPUT_LIMIT, program=None, seconds=None):
    """Runs the program, or another one. What it has begun ends with it, also if this call is cancelled."""
    if seconds is not None:
        return await asyncio.wait_for(call(args, data, env, limit, program), seconds)
    process = await asyncio.create_subprocess_exec(
        program or os.environ.get("SANDBOX_PROGRAM", "sandbox"),
        *args,
        stdin=asyncio.subprocess.PIPE if data is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    tasks = [asyncio.ensure_future(_read(s, limit)) for s in (process.stdout, process.stderr)]
    if data is not None:
        tasks.append(asyncio.ensure_future(_feed(process.stdin, data)))
    try:
        out, err, *_ = await asyncio.gather(*tasks)
        return await process.wait(), out, err
    finally:
        if not all(task.done() for task in tasks) or process.returncode is None:
            await asyncio.shield(_end(process, tasks))


async def _end(process, tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if process.returncode is None:
        process.terminate()
    for stream in (process.stdout, process.stderr):  # until they end, wait does not return
        while await stream.read(1 << 16):
            pass
    await process.wait()


async def manage(*args):
    """Runs a verb of the program that has to succeed, and returns its JSON."""
    code, out, err = await call(args)
    if code != 0:
        raise SandboxError(err.decode(errors="replace").strip())
    return json.loads(out)


async def delete(*names):
    if names:
        await manage("delete", "--json", "--yes", "--delete-volumes", "--", *names)


def environment(env):
    """The flags of "sandbox exec" for the environment of a command, and the variables to call it with.

    What is in the arguments other users of this machine can read; what the program needs for itself
    can't be in its environment.
    """
    flags, values = [], {}
    for key, value in env.items():
        if key in os.environ or key.startswith(("DOCKER_", "SANDBOX_", "LD_", "GO")):
            flags += ["--env", f"{key}={value}"]
        else:
            flags += ["--env", key]
            values[key] = value
    return flags, values
