# asyncssh.
import asyncio, os, random
import asyncssh

async def main():
    async with asyncssh.connect("127.0.0.1", int(os.environ["PORT"]), username="root", client_keys=[os.environ["KEY"]], known_hosts=None) as conn:
        for command in ["echo out; echo err >&2; exit 3", "kill -USR1 $$"]:
            r = await conn.run(command)
            print(repr(r.stdout), repr(r.stderr), r.exit_status, r.exit_signal and r.exit_signal[0])
        r = await conn.run("cat", input="to and fro")
        print(r.stdout)
        r = await conn.run("stty size; echo $TERM", term_type="vt100", term_size=(90, 30))
        print(repr(r.stdout))
        async with conn.start_sftp_client() as sftp:
            # Paths of new links are relative to the home, which the servers share.
            await conn.run("cd && rm -rf a d l new no here")
            await sftp.chdir(os.environ["THERE"])
            await sftp.put("here", recurse=True, preserve=True)
            async def attempt(what, call):
                try:
                    print(what, await call)
                except (asyncssh.SFTPError, OSError) as e:
                    print(what, type(e).__name__, getattr(e, "code", ""), getattr(e, "reason", e))
            async def write(name, mode, data):
                async with sftp.open(name, mode) as f:
                    if mode == "r":
                        return await f.read()
                    await f.write(data)
                    return (await f.stat()).size
            g = random.Random(35)
            names = ["a", "d", "d/e", "l", "here/a", "new", "no/such", "here/sub"]
            for n in range(200):
                name, other = g.choice(names), g.choice(names)
                for k, what, call in [
                    (0, "open", lambda: write(name, g.choice("rwaa"), g.choice(["1st\n", "", "and more\n"]))),
                    (1, "mkdir", lambda: sftp.mkdir(name)), (2, "remove", lambda: sftp.remove(name)), (3, "rmdir", lambda: sftp.rmdir(name)),
                    (4, "symlink", lambda: sftp.symlink(g.choice(["a", "../up", "here/a", "/x"]), name)), (5, "readlink", lambda: sftp.readlink(name)),
                    (6, "rename", lambda: sftp.rename(name, other)), (7, "posix_rename", lambda: sftp.posix_rename(name, other)),
                    (8, "link", lambda: sftp.link(name, other)), (9, "truncate", lambda: sftp.truncate(name, g.choice([0, 2, 8]))),
                    (10, "realpath", lambda: sftp.realpath(name)), (11, "chmod", lambda: sftp.chmod(name, g.choice([0o600, 0o755]))),
                    (12, "exists", lambda: sftp.exists(name)), (13, "listdir", lambda: listed(sftp, name)), (14, "open", lambda: write(name, "a", "appended\n")),
                ]:
                    if k == n * 7 % 15:
                        await attempt((n, what, name, other), call())
            print((await sftp.statvfs(".")).bsize)

async def listed(sftp, name):
    return sorted(await sftp.listdir(name))

asyncio.run(main())
