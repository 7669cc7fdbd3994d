// Package sandbox gives a program named, isolated, disposable Linux environments on any
// Docker Engine that it can reach.
//
//	sb, err := sandbox.Create(ctx, sandbox.WithName("build-42"), sandbox.WithVCPUs(2))
//	if err != nil {
//		return err
//	}
//	defer sb.Close()
//	out, err := sb.Command(ctx, "node", "-e", "console.log(6*7)").Output()
//
// There is no server, no database and no file on the caller's disk: the engine's containers,
// volumes and labels are the only state. Two processes, or a process and its successor, see the
// same sandboxes.
//
// A sandbox is a container and not a virtual machine: it shares its kernel with the engine's
// machine. Run code that attacks kernels on an engine that has a machine of its own.
//
// This page says what a caller needs first. The pages in [docs] have the rest.
//
// # Sandboxes and sessions
//
// A sandbox has a name, settings and files, and persists. A session is one run of it, from start
// to stop. [Create] creates a sandbox and starts its first session. [Get] finds a sandbox by name or
// ID, and resumes it if it is stopped. [GetOrCreate] does one or the other: of any number of callers
// in any number of processes exactly one creates the sandbox. [Sandbox.Stop] and [Sandbox.Close] end
// the session: every process gets SIGTERM, and SIGKILL after 30 s ([WithStopTimeout]).
//
// What is kept:
//
//	                        persistent            not persistent
//	                        (default with a name) (default without)
//	Stop, then Start        files                 files
//	Close                   files                 nothing
//	the program dies        everything            stopped 30 s later, and removed by a sweep
//	WithTimeout passes      files                 nothing
//	WithIdleTimeout passes  files                 nothing
//	Detach                  everything            everything, until the session ends
//	Delete                  the volumes, unless DeleteOptions.Volumes is set
//
// "Files" are all files, in the workspace and outside of it. "Everything" is files and processes. A
// sweep runs in the background of the next program that creates or lists sandboxes. A method that
// needs a session resumes a stopped persistent sandbox. Close takes no context, so that it can be
// deferred, and is bounded. [Sandbox.Detach] releases a handle and leaves the session running.
//
// A handle and a [Client] can be used by any number of goroutines at a time. A context bounds the
// call that it is given to, and nothing after that; the context of a [Cmd] bounds the command.
//
// # Timeouts and updates
//
// [WithTimeout] ends every session a fixed time after its start, [WithIdleTimeout] when nobody
// has used it for a time. PID 1 of the sandbox enforces both, also when the program that set them
// has ended. [Status] reports when a session will end, and why the last one has ended.
//
// [Sandbox.Update] changes settings of an existing sandbox:
//
//	WithTags, WithoutTag          at once
//	WithPersistent                at once
//	WithVCPUs, WithMemory         at once, and in later sessions
//	WithNetworkPolicy             at once, and in later sessions
//	WithIdleTimeout               at once, and in later sessions
//	WithStopTimeout               at once for Stop and Close, for timeouts from the next session
//	WithEnv, WithoutEnv           at once for commands, from the next session for the main process
//	WithTimeout, WithPorts        from the next session
//	WithMounts, WithoutMount      from the next session
//	WithCommand                   from the next session
//	image, runtime, user, directory, process limit, name and ID: never
//
// See [sessions].
//
// # Commands
//
// [Sandbox.Command] returns a [Cmd], which is used like that of os/exec. No shell parses the
// arguments. The environment is the image's, overridden by [WithEnv], overridden by [Cmd.Env]. The
// directory is [Cmd.Dir], by default [WithWorkdir], by default /workspace. When the context ends, or
// the program dies, the command and all processes that it started are killed.
//
// A [Cmd.Detached] command continues. [Sandbox.Process] finds it again, in any process, and
// [Sandbox.Processes] lists the detached commands of this session and earlier ones. [Sandbox.Logs] reads
// their output and the output of the main process ([WithCommand]), also of a stopped sandbox.
//
// Any Linux image works, even one without a shell: a small static program, the guest, is mounted
// read-only into every sandbox and serves its handles.
//
// # Files
//
// [Sandbox.ReadFile], [Sandbox.WriteFile], [Sandbox.Open] and similar methods are package os with a
// context. [Sandbox.FS] is the file system for package io/fs. Names are relative to the working
// directory. The kernel inside checks permissions, for the sandbox's user or for the user of
// [Sandbox.FilesAs]. [Sandbox.CopyIn] and [Sandbox.CopyOut] copy files and trees in constant
// memory, and list in a [CopyReport] what they could not preserve. CopyOut never writes outside of
// its destination, whatever the sandbox sends. The files of a stopped sandbox can be read without
// starting it.
//
// # Ports and connections
//
// [Sandbox.DialContext] connects to any server inside. It needs no published port and fits an
// http.Transport. [Sandbox.WaitPort] waits until a server listens. [WithPorts] publishes ports on
// 127.0.0.1 of the engine's machine, for clients without a handle; [Sandbox.Port] returns the
// published port, which changes with every session. [Sandbox.SSH] connects to an SSH server inside,
// and the command "sandbox proxy NAME" lets ssh, scp, sftp, rsync and git do so.
//
// # Network policy
//
// [WithNetworkPolicy] says what a sandbox may connect to: [AllowAll], the default, [PublicOnly],
// [DenyAll], or names and subnets ([NetworkPolicy]). The policy applies to root inside, too, from the
// first instruction of every session. [Sandbox.Update] changes it in a running session, and
// [Sandbox.Egress] lists what the sandbox attempted. Sandboxes can't reach each other under any
// policy. An engine that can't enforce a policy runs no sandbox: the error is [ErrUnsupported].
//
// Don't use "docker exec" on a sandbox that runs code that you don't trust: the engine gives such
// processes the capability to change the network. See [network].
//
// # Volumes
//
// Every sandbox has a volume of its own at /workspace. [WithMounts] adds others: a copy of a directory
// (the default, which never changes the directory), the directory itself, or a volume that an earlier
// sandbox has left. [Delete] preserves volumes by default. [ListVolumes] reports which sandboxes use
// each volume, and [CleanupOrphanedVolumes] removes the volumes that no sandbox uses. See [volumes].
//
// # Forks and snapshots
//
// [Sandbox.Fork] creates a sandbox with the current files of another one, [Sandbox.ForkN] several with
// the files of one moment, and [Sandbox.Snapshot] stores the files for [FromSnapshot]. The processes of a running
// source stand still while its files are copied. [Sandbox.Rollback] replaces the files of a sandbox by
// the files of a snapshot: all of them, or none. See [volumes].
//
// # Defaults
//
// Image node:20-bookworm, 1 CPU, 2048 MiB of memory for each CPU and no swap, 4,096 processes
// ([WithPidsLimit]), the engine's default OCI runtime ([WithOCIRuntime]), and a log of at most 3 files
// of 10 MB. The capabilities NET_RAW and MKNOD are dropped, and only PID 1 has NET_ADMIN. A seccomp
// profile denies families of sockets, namespaces and calls that programs rarely use. An image's
// HEALTHCHECK is disabled, since it would run outside of PID 1's rules. Programs of users other than
// root gain no privileges from setuid programs such as sudo ([WithNewPrivileges]). What sandboxes
// share with the machine is in [isolation].
//
// # State in the engine
//
// Names and labels of objects in the engine are a contract, which other tools may read: [contract].
// All objects have the label agent-sandbox.managed=true; objects without it are never listed,
// adopted or removed. What crashed programs left is removed by sweeps, or at once by [Prune].
//
// # Errors
//
// Every error is an *[Error], which says where it happened, or an *[ExitError] of a command that
// failed. Test for the sentinels ([ErrNotFound], [ErrExists], [ErrEngineUnavailable] …) with
// errors.Is; the engine's own error stays in the chain. Whatever ends a session, the calls that it
// ends return [ErrSessionLost], which says why. A command that the kernel kills for memory has
// [ExitError].OutOfMemory; its session goes on. A connection to the engine that is lost
// without a word is [ErrEngineUnavailable] within a bounded time, see [operations]. The results of
// this package have stable names in JSON.
//
// [docs]: https://github.com/seed-1a2d6d8f/sandbox/blob/main/docs/README.md
// [sessions]: https://github.com/seed-1a2d6d8f/sandbox/blob/main/docs/sessions.md
// [network]: https://github.com/seed-1a2d6d8f/sandbox/blob/main/docs/network.md
// [volumes]: https://github.com/seed-1a2d6d8f/sandbox/blob/main/docs/volumes.md
// [isolation]: https://github.com/seed-1a2d6d8f/sandbox/blob/main/docs/isolation.md
// [contract]: https://github.com/seed-1a2d6d8f/sandbox/blob/main/docs/contract.md
// [operations]: https://github.com/seed-1a2d6d8f/sandbox/blob/main/docs/operations.md#lost-connections
package sandbox
