"""A sample's life in a sandbox: the calls that inspect_ai makes, by its documented contract."""

import asyncio
import sys

import sandbox_inspect
from inspect_ai.util import OutputLimitExceededError, registered


async def raises(error, call):
    try:
        got = await call
    except error as e:
        assert type(e) is error, repr(e)
        return e
    raise AssertionError(f"{got!r}, want {error.__name__}")


async def main():
    cls = registered["sandbox"]
    made = await cls.sample_init("task", None, {})
    box = made["default"]
    print(box.name, flush=True)
    try:
        await use(box)
    finally:
        await cls.sample_cleanup("task", None, made, False)
    e = await raises(sandbox_inspect.SandboxError, box.exec(["true"]))
    assert box.name in str(e), e
    made = await cls.sample_init("task", "node:20-bookworm", {})
    print(made["default"].name, flush=True)
    await cls.cli_cleanup(made["default"].name)
    await raises(sandbox_inspect.SandboxError, cls.sample_init("task", "no-such-image:0", {}))


async def use(box):
    r = await box.exec(["sh", "-c", "cat; pwd; echo $A$PATH; echo err >&2; id -un; exit 3"], input="in\n", cwd="/tmp", env={"A": "b c:", "PATH": "/bin:/usr/bin"}, user="node")
    assert (r.success, r.returncode, r.stdout, r.stderr) == (False, 3, "in\n/tmp\nb c:/bin:/usr/bin\nnode\n", "err\n"), r
    r = await box.exec(["sh", "-c", "exit 125"])
    assert r.returncode == 125, r
    await raises(TimeoutError, box.exec(["sleep", "1000"], timeout=1))
    e = await raises(OutputLimitExceededError, box.exec(["yes"]))
    assert e.truncated_output.startswith("y\ny\n"), e
    await raises(PermissionError, box.exec(["/etc/passwd"]))
    await raises(UnicodeDecodeError, box.exec(["printf", r"\377"]))
    await box.write_file("a b/c/d.txt", "ä\r\n")
    assert await box.read_file("/workspace/a b/c/d.txt") == "ä\r\n"
    await box.write_file("binary", b"\x00\xff")
    assert await box.read_file("binary", text=False) == b"\x00\xff"
    await raises(UnicodeDecodeError, box.read_file("binary"))
    await raises(FileNotFoundError, box.read_file("none"))
    await raises(IsADirectoryError, box.read_file("a b"))
    await raises(IsADirectoryError, box.write_file("a b", ""))
    await raises(PermissionError, box.write_file("/proc/a", ""))
    await raises(PermissionError, box.read_file("/dev/zero"))
    await box.exec(["truncate", "-s", "101M", "long"])
    await raises(OutputLimitExceededError, box.read_file("long"))
    call = asyncio.ensure_future(box.exec(["sh", "-c", "touch runs; exec sleep 7777"]))
    while not (await box.exec(["test", "-e", "runs"])).success:
        pass
    call.cancel()
    await raises(asyncio.CancelledError, call)
    while (await box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q 'sleep [7]777'"])).success:
        pass


asyncio.run(asyncio.wait_for(main(), 1200))
sys.exit(0)
