package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

// env are variables of the form KEY=VALUE, or KEY for the value that it has in this program.
type env []string

func (e *env) flag(c *cobra.Command, usage string) {
	c.PreRunE = func(*cobra.Command, []string) error { return e.check() }
	c.Flags().StringArrayVarP((*[]string)(e), "env", "e", nil, usage+"; KEY alone has the value that it has here")
}

// check fails if a variable has no name that Linux takes. Its text is not shown: it may be a secret that lost its name.
func (e env) check() error {
	for i, v := range e {
		if key, _, _ := strings.Cut(v, "="); key == "" || strings.ContainsAny(key, "\r\n") {
			return usagef("--env: number %d of them is neither KEY=VALUE nor KEY", i+1)
		}
	}
	return nil
}

// list returns the variables as KEY=VALUE. As in Docker's command line, a KEY that is not set
// here is left out.
func (e env) list() []string {
	var list []string
	for _, v := range e {
		if !strings.Contains(v, "=") {
			value, ok := os.LookupEnv(v)
			if !ok {
				continue
			}
			v += "=" + value
		}
		list = append(list, v)
	}
	return list
}

func (e env) variables() map[string]string {
	variables := map[string]string{}
	for _, v := range e.list() {
		key, value, _ := strings.Cut(v, "=")
		variables[key] = value
	}
	return variables
}

// process are the flags that say how commands run: one command, or all of a sandbox.
type process struct {
	env  env
	dir  string
	user string
}

func (p *process) flags(c *cobra.Command, of string) {
	p.env.flag(c, "set an environment variable of "+of)
	c.Flags().StringVarP(&p.dir, "workdir", "w", "", "the directory of "+of+" (default /workspace)")
	c.Flags().StringVarP(&p.user, "user", "u", "", "the user of "+of+" (default the image's)")
}

// settings adds those flags that were given to the settings of a sandbox whose commands run so.
func (p *process) settings(c *cobra.Command, set *sandbox.Settings) {
	if c.Flags().Changed("env") {
		set.Env = p.env.variables()
	}
	if c.Flags().Changed("workdir") {
		set.Workdir = &p.dir
	}
	if c.Flags().Changed("user") {
		set.User = &p.user
	}
}

// duration is a time.Duration that may begin with days.
type duration time.Duration

func (d *duration) Type() string { return "duration" }
func (d *duration) String() string {
	if *d == 0 {
		return "0"
	}
	return time.Duration(*d).String()
}

func (d *duration) Set(s string) error {
	days, rest, ok := strings.Cut(s, "d")
	if !ok {
		parsed, err := time.ParseDuration(s)
		*d = duration(parsed)
		return err
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return fmt.Errorf("%q is not a number of days", days)
	}
	whole, more := time.Duration(n)*24*time.Hour, time.Duration(0)
	if rest != "" {
		if more, err = time.ParseDuration(rest); err != nil {
			return err
		}
	}
	if strings.ContainsAny(rest, "+-") || whole+more < whole {
		return fmt.Errorf("%q is no time that can follow days", rest)
	}
	*d = duration(whole + more)
	return nil
}

// size is a number of bytes. Without a unit it counts MiB.
type size int64

func (n *size) Type() string { return "size" }

func (n *size) String() string {
	if *n == 0 {
		return "0"
	}
	i, unit := int64(*n), 0
	for i%1024 == 0 && unit < 3 {
		i, unit = i/1024, unit+1
	}
	return strconv.FormatInt(i, 10) + []string{"b", "k", "m", "g"}[unit]
}

func (n *size) Set(s string) error {
	digits := strings.TrimRight(s, "bBiIkKmMgG")
	shift, ok := map[string]uint{"": 20, "m": 20, "mb": 20, "mib": 20, "b": 0, "k": 10, "kb": 10, "kib": 10, "g": 30, "gb": 30, "gib": 30}[strings.ToLower(s[len(digits):])]
	count, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || count < 0 || count > 1<<62>>shift {
		return fmt.Errorf("%q is not a size, such as 512m or 2g", s)
	}
	*n = size(count << shift)
	return nil
}

// A setting is the value of a flag that sets a field of the settings when it is given.
type setting[T any] struct {
	field **T
	kind  string // of its values, for the help
	parse func(string) (T, error)
	given string
}

func (s *setting[T]) Type() string   { return s.kind }
func (s *setting[T]) String() string { return s.given }

func (s *setting[T]) Set(text string) error {
	v, err := s.parse(text)
	if err == nil {
		*s.field, s.given = &v, text
	}
	return err
}

// sets adds a flag that sets a field of the settings. The help shows the default, if there is one.
func sets[T any](c *cobra.Command, field **T, name, kind, shown, usage string, parse func(string) (T, error)) {
	flag := c.Flags().VarPF(&setting[T]{field: field, kind: kind, parse: parse}, name, "", usage)
	flag.DefValue = shown
	if kind == "bool" {
		flag.NoOptDefVal = "true"
	}
}

func parseText(s string) (string, error)   { return s, nil }
func parseFloat(s string) (float64, error) { return strconv.ParseFloat(s, 64) }
func parseBytes(s string) (int64, error)   { var n size; err := n.Set(s); return int64(n), err }
func parseTime(s string) (time.Duration, error) {
	var d duration
	err := d.Set(s)
	return time.Duration(d), err
}

// settingsFlags are the flags for the settings of a sandbox, and what is read from them.
type settingsFlags struct {
	set             sandbox.Settings
	mounts, volumes []string
	network         string
	remote, yes     bool
}

// changes adds the flags that create, run, fork and update share.
func (f *settingsFlags) changes(a *app, c *cobra.Command) {
	c.Flags().StringArrayVar(&f.mounts, "mount", nil, "mount a directory; the mode is rwcopy (the default, a copy), rw or ro")
	c.Flags().BoolVar(&f.remote, "remote-mounts", false, "sources of mounts in mode ro and rw are directories of the engine's machine, not of this one")
	c.Flags().StringArrayVar(&f.volumes, "volume", nil, "attach a volume of \"sandbox volume list\"; the mode is rw (the default) or ro")
	c.Flags().IntSliceVar(&f.set.Ports, "port", nil, "publish a TCP port on 127.0.0.1 of the engine's machine")
	c.Flags().StringToStringVar(&f.set.Tags, "tag", nil, "set a tag")
	sets(c, &f.set.VCPUs, "vcpus", "float64", "1", "the number of CPUs", parseFloat)
	sets(c, &f.set.MemoryBytes, "memory", "size", "", "the memory limit, such as 512m or 2g; MiB without a unit (default 2048 for each CPU)", parseBytes)
	sets(c, &f.set.Timeout, "timeout", "duration", "", "end each session after this time, such as 10m or 7d (default never)", parseTime)
	sets(c, &f.set.IdleTimeout, "idle-timeout", "duration", "", "end a session that nobody has used for this time (default never)", parseTime)
	sets(c, &f.set.StopTimeout, "stop-timeout", "duration", "", "the time between SIGTERM and SIGKILL at the end of a session (default 30s)", parseTime)
	sets(c, &f.set.Persistent, "persistent", "bool", "true", "keep the sandbox when its session ends", strconv.ParseBool)
	c.Flags().StringVar(&f.network, "network", "", networkHelp)
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "don't ask for a confirmation of mounts")
	_ = c.RegisterFlagCompletionFunc("volume", a.orphanedVolumes)
	_ = c.RegisterFlagCompletionFunc("network", policies)
}

var policies = fixed("allow-all", "public-only", "deny-all")

// makes adds the flags that create, run and fork share. image is the image by default.
func (f *settingsFlags) makes(a *app, c *cobra.Command, image, usage string) {
	f.changes(a, c)
	sets(c, &f.set.Name, "name", "string", "", "the sandbox's name (default its ID)", parseText)
	sets(c, &f.set.Image, "image", "string", image, usage, parseText)
	sets(c, &f.set.Runtime, "runtime", "string", "", "a runtime instead of an image, such as node22", parseText)
	sets(c, &f.set.OCIRuntime, "oci-runtime", "string", "", "the engine's OCI runtime to use, such as runsc (default the engine's)", parseText)
	_ = c.RegisterFlagCompletionFunc("image", a.defaults(func(d sandbox.Defaults) []string { return d.Images }))
	_ = c.RegisterFlagCompletionFunc("runtime", a.defaults(runtimes))
	_ = c.RegisterFlagCompletionFunc("oci-runtime", a.defaults(func(d sandbox.Defaults) []string { return d.OCIRuntimes }))
	c.Flags().StringSliceVar(&f.set.GPUs, "gpus", nil, "GPUs of the engine's machine: all, indexes, UUIDs, or names such as nvidia.com/gpu=0")
	sets(c, &f.set.PidsLimit, "pids-limit", "int", strconv.Itoa(sandbox.DefaultPidsLimit), "the number of processes and threads", strconv.Atoi)
	sets(c, &f.set.StorageBytes, "storage", "size", "", "the size of the container's own layer, where the engine can limit it (default unlimited)", parseBytes)
}

// settings returns the settings of the flags that were given, which are those of a sandbox whose main
// process is argv, if there is one.
func (f *settingsFlags) settings(c *cobra.Command, argv []string) (sandbox.Settings, error) {
	var err error
	if f.set.Mounts, err = f.mounted(); err != nil {
		return f.set, err
	}
	if c.Flags().Changed("network") {
		policy, err := sandbox.ParseNetworkPolicy(f.network)
		if err != nil {
			return f.set, err
		}
		f.set.Network = &policy
	}
	if len(argv) > 0 {
		f.set.Command = argv
	}
	return f.set, nil
}

// transient reports whether the sandbox is not to be kept.
func (f *settingsFlags) transient() bool { return f.set.Persistent != nil && !*f.set.Persistent }

func (f *settingsFlags) mounted() ([]sandbox.Mount, error) {
	var (
		mounts []sandbox.Mount
		errs   []error
	)
	for _, specs := range []struct {
		list  []string
		parse func(string) (sandbox.Mount, error)
	}{{f.mounts, sandbox.ParseMount}, {f.volumes, sandbox.ParseVolumeMount}} {
		for _, spec := range specs.list {
			m, err := specs.parse(spec)
			m.Remote = f.remote && m.Volume == "" && m.Mode != sandbox.RWCopy
			if err == nil && m.Source != "" && !m.Remote {
				m.Source, err = filepath.Abs(m.Source) // as a confirmation shows it
			}
			m.Target = path.Clean(m.Target)
			mounts, errs = append(mounts, m), append(errs, err)
		}
	}
	return mounts, errors.Join(errs...)
}

// confirm asks whether the sandbox is to have the mounts, if there are any.
func (f *settingsFlags) confirm(a *app, c *cobra.Command, question string) error {
	if len(f.set.Mounts) == 0 {
		return nil
	}
	lines := make([]string, len(f.set.Mounts))
	for i, m := range f.set.Mounts {
		lines[i] = m.String()
	}
	if err := a.confirm(c.Context(), f.yes, strings.Join(lines, "\n"), question); err != nil {
		return fmt.Errorf("sandbox: %s: %w", c.Name(), err)
	}
	return nil
}

const confirmCreate = "Create the sandbox with these mounts?"

// removalFlags are the flags that fork and update share.
type removalFlags struct{ env, tags, mounts []string }

func (f *removalFlags) flags(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.env, "without-env", nil, "take this environment variable away")
	c.Flags().StringArrayVar(&f.tags, "without-tag", nil, "take this tag away")
	c.Flags().StringArrayVar(&f.mounts, "without-mount", nil, "take the mount at this path of the sandbox away")
}

func (f *removalFlags) options() (opts []sandbox.RemoveOption) {
	for _, removal := range []struct {
		keys   []string
		option func(...string) sandbox.RemoveOption
	}{{f.env, sandbox.WithoutEnv}, {f.tags, sandbox.WithoutTag}, {f.mounts, sandbox.WithoutMount}} {
		if len(removal.keys) > 0 {
			opts = append(opts, removal.option(removal.keys...))
		}
	}
	return opts
}

// createFlags are the flags of create and run.
type createFlags struct {
	settingsFlags
	source    source
	placement []string
}

func (f *createFlags) flags(a *app, c *cobra.Command) {
	f.makes(a, c, sandbox.DefaultImage, "the image, pulled if the engine does not have it")
	f.source.flags(a, c)
	c.Flags().StringArrayVar(&f.placement, "placement", nil, "with --swarm, a constraint for the node, such as node.labels.gpu==true")
}

// options returns the options for a new sandbox with these settings.
func (f *createFlags) options(a *app, c *cobra.Command, set sandbox.Settings) ([]sandbox.CreateOption, error) {
	opts := []sandbox.CreateOption{sandbox.WithProgress(a.progress.show), sandbox.WithSettings(set)}
	if len(f.placement) > 0 {
		opts = append(opts, sandbox.WithPlacement(f.placement...))
	}
	source, err := f.source.source(c)
	if source != nil {
		opts = append(opts, sandbox.WithSource(source))
	}
	return opts, err
}

// source are the flags for the workspace's first files.
type source struct {
	git, revision, tarball, dir, snapshot string
	depth, strip                          int
}

func (s *source) flags(a *app, c *cobra.Command) {
	c.Flags().StringVar(&s.git, "git", "", "start with a clone of this repository: a URL (other users of this machine can see a password in it) or an absolute path")
	c.Flags().StringVar(&s.revision, "revision", "", "the branch, tag or commit to clone (default the repository's HEAD)")
	c.Flags().IntVar(&s.depth, "depth", 0, "the number of commits of history to clone (default all)")
	c.Flags().StringVar(&s.tarball, "tarball", "", "start with the files of this archive: a URL, a file, or - for stdin")
	c.Flags().IntVar(&s.strip, "strip", 0, "remove this many leading elements from the archive's names")
	c.Flags().StringVar(&s.dir, "from", "", "start with a copy of this directory")
	c.Flags().StringVar(&s.snapshot, "snapshot", "", "start with the files and the image of this snapshot")
	_ = c.RegisterFlagCompletionFunc("snapshot", a.snapshots)
}

// checkEmpty fails if one of the flags was given as an empty text, such as by a script whose variable is not set: it
// would be as if it had not been given.
func checkEmpty(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := c.Flags().Lookup(name); f.Changed && (f.Value.String() == "" || f.Value.String() == "[]") {
			return usagef("--%s: the value is empty", name)
		}
	}
	return nil
}

// source returns nil if no flag names a source.
func (s *source) source(c *cobra.Command) (sandbox.Source, error) {
	if err := checkEmpty(c, "git", "revision", "tarball", "from", "snapshot"); err != nil {
		return nil, err
	}
	given := 0
	for _, flag := range []string{s.git, s.tarball, s.dir, s.snapshot} {
		if flag != "" {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, usagef("--git, --tarball, --from and --snapshot exclude each other")
	case s.git == "" && (s.revision != "" || s.depth != 0):
		return nil, usagef("--revision and --depth need --git")
	case s.tarball == "" && s.strip != 0:
		return nil, usagef("--strip needs --tarball")
	case s.git != "":
		return sandbox.Git{URL: s.git, Revision: s.revision, Depth: s.depth}, nil
	case s.tarball == "-":
		return sandbox.Tarball{Reader: c.InOrStdin(), Strip: s.strip}, nil
	case strings.Contains(s.tarball, "://"):
		return sandbox.Tarball{URL: s.tarball, Strip: s.strip}, nil
	case s.tarball != "":
		return sandbox.Tarball{Path: s.tarball, Strip: s.strip}, nil
	case s.dir != "":
		return sandbox.Dir(s.dir), nil
	case s.snapshot != "":
		return sandbox.FromSnapshot(s.snapshot), nil
	}
	return nil, nil
}
