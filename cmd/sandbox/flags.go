package main

import (
	"errors"
	"fmt"
	"io"
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
	c.Flags().StringArrayVarP((*[]string)(e), "env", "e", nil, usage+": KEY=VALUE, or KEY for the value it has here")
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
	c.Flags().StringVarP(&p.user, "user", "u", "", "the user of "+of+": USER or USER:GROUP (default the image's)")
}

// options returns the options for a sandbox whose commands run like this.
func (p *process) options(c *cobra.Command) []sandbox.MakeOption {
	var opts []sandbox.MakeOption
	given := c.Flags().Changed
	if given("env") {
		opts = append(opts, sandbox.WithEnv(p.env.variables()))
	}
	if given("workdir") {
		opts = append(opts, sandbox.WithWorkdir(p.dir))
	}
	if given("user") {
		opts = append(opts, sandbox.WithUser(p.user))
	}
	return opts
}

// duration is a time.Duration that may be given in days.
type duration time.Duration

func (d *duration) Type() string { return "duration" }
func (d *duration) String() string {
	if *d == 0 {
		return "0"
	}
	return time.Duration(*d).String()
}

func (d *duration) Set(s string) error {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return fmt.Errorf("%q is not a number of days", days)
		}
		*d = duration(time.Duration(n) * 24 * time.Hour)
		return nil
	}
	parsed, err := time.ParseDuration(s)
	*d = duration(parsed)
	return err
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

// changeFlags are the flags that create, run, fork and update share.
type changeFlags struct {
	mounts, volumes []string
	ports           []int
	tags            map[string]string
	vcpus           float64
	memory          size
	timeout, stop   duration
	idle            duration
	network         string
	remote, yes     bool
}

func (f *changeFlags) flags(a *app, c *cobra.Command) {
	c.Flags().StringArrayVar(&f.mounts, "mount", nil, "mount a directory: source:target[:mode]; mode is rwcopy (the default, a copy), rw or ro")
	c.Flags().BoolVar(&f.remote, "remote-mounts", false, "sources of mounts in mode ro and rw are directories of the engine's machine, not of this one")
	c.Flags().StringArrayVar(&f.volumes, "volume", nil, "attach a volume of \"sandbox volume list\": name:target[:mode]; mode is rw (the default) or ro")
	c.Flags().IntSliceVar(&f.ports, "port", nil, "publish a TCP port on 127.0.0.1 of the engine's machine")
	c.Flags().StringToStringVar(&f.tags, "tag", nil, "set a tag: KEY=VALUE")
	c.Flags().Float64Var(&f.vcpus, "vcpus", sandbox.DefaultVCPUs, "the number of CPUs")
	c.Flags().Var(&f.memory, "memory", "the memory limit, such as 512m or 2g; MiB without a unit (default 2048 for each CPU)")
	c.Flags().Var(&f.timeout, "timeout", "end each session after this time, such as 10m or 7d (default never)")
	c.Flags().Var(&f.idle, "idle-timeout", "end a session that nobody has used for this time (default never)")
	c.Flags().Var(&f.stop, "stop-timeout", "the time between SIGTERM and SIGKILL at the end of a session (default 30s)")
	c.Flags().StringVar(&f.network, "network", "", networkHelp)
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "don't ask for a confirmation of mounts")
	_ = c.RegisterFlagCompletionFunc("volume", a.orphanedVolumes)
	_ = c.RegisterFlagCompletionFunc("network", policies)
}

var policies = fixed("allow-all", "public-only", "deny-all")

// options returns an option for each flag that was given.
func (f *changeFlags) options(c *cobra.Command) ([]sandbox.ChangeOption, error) {
	var opts []sandbox.ChangeOption
	given := c.Flags().Changed
	mounts, err := f.mounted()
	if err != nil {
		return nil, err
	}
	if len(mounts) > 0 {
		opts = append(opts, sandbox.WithMounts(mounts...))
	}
	if given("port") {
		opts = append(opts, sandbox.WithPorts(f.ports...))
	}
	if given("tag") {
		opts = append(opts, sandbox.WithTags(f.tags))
	}
	if given("vcpus") {
		opts = append(opts, sandbox.WithVCPUs(f.vcpus))
	}
	if given("memory") {
		opts = append(opts, sandbox.WithMemory(int64(f.memory)))
	}
	if given("timeout") {
		opts = append(opts, sandbox.WithTimeout(time.Duration(f.timeout)))
	}
	if given("idle-timeout") {
		opts = append(opts, sandbox.WithIdleTimeout(time.Duration(f.idle)))
	}
	if given("stop-timeout") {
		opts = append(opts, sandbox.WithStopTimeout(time.Duration(f.stop)))
	}
	if given("network") {
		policy, err := sandbox.ParseNetworkPolicy(f.network)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sandbox.WithNetworkPolicy(policy))
	}
	return opts, nil
}

func (f *changeFlags) mounted() ([]sandbox.Mount, error) {
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
func (f *changeFlags) confirm(a *app, c *cobra.Command, question string) error {
	mounts, err := f.mounted()
	if err != nil || len(mounts) == 0 {
		return err
	}
	lines := make([]string, len(mounts))
	for i, m := range mounts {
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

// imageFlags are the flags that create, run and fork share, with another default for a fork.
type imageFlags struct{ image, runtime string }

func (f *imageFlags) flags(c *cobra.Command, image, usage string) {
	c.Flags().StringVar(&f.image, "image", image, usage)
	c.Flags().StringVar(&f.runtime, "runtime", "", "a runtime instead of an image, such as node22")
}

func (f *imageFlags) options(c *cobra.Command) (opts []sandbox.MakeOption) {
	if c.Flags().Changed("image") {
		opts = append(opts, sandbox.WithImage(f.image))
	}
	if c.Flags().Changed("runtime") {
		opts = append(opts, sandbox.WithRuntime(f.runtime))
	}
	return opts
}

// makeFlags are the flags that create, run and fork share.
type makeFlags struct {
	changeFlags
	name, ociRuntime string
	persistent       bool
	pids             int
	storage          size
}

func (f *makeFlags) flags(a *app, c *cobra.Command) {
	f.changeFlags.flags(a, c)
	c.Flags().StringVar(&f.name, "name", "", "the sandbox's name (default its ID)")
	c.Flags().BoolVar(&f.persistent, "persistent", true, "keep the sandbox when its session ends")
	c.Flags().StringVar(&f.ociRuntime, "oci-runtime", "", "the engine's OCI runtime to use, such as runsc (default the engine's)")
	c.Flags().IntVar(&f.pids, "pids-limit", sandbox.DefaultPidsLimit, "the number of processes and threads")
	c.Flags().Var(&f.storage, "storage", "the size of the container's own layer, where the engine can limit it (default unlimited)")
}

// options returns the options for a fork or a new sandbox.
func (f *makeFlags) options(a *app, c *cobra.Command) ([]sandbox.MakeOption, error) {
	opts := []sandbox.MakeOption{sandbox.WithProgress(a.progress.show)}
	changes, err := f.changeFlags.options(c)
	if err != nil {
		return nil, err
	}
	for _, o := range changes {
		opts = append(opts, o)
	}
	given := c.Flags().Changed
	if given("name") {
		opts = append(opts, sandbox.WithName(f.name))
	}
	if given("persistent") {
		opts = append(opts, sandbox.WithPersistent(f.persistent))
	}
	if given("oci-runtime") {
		opts = append(opts, sandbox.WithOCIRuntime(f.ociRuntime))
	}
	if given("pids-limit") {
		opts = append(opts, sandbox.WithPidsLimit(f.pids))
	}
	if given("storage") {
		opts = append(opts, sandbox.WithStorageSize(int64(f.storage)))
	}
	return opts, nil
}

// createFlags are the flags of create and run.
type createFlags struct {
	makeFlags
	image  imageFlags
	source source
}

func (f *createFlags) flags(a *app, c *cobra.Command) {
	f.makeFlags.flags(a, c)
	f.image.flags(c, sandbox.DefaultImage, "the image, pulled if the engine does not have it")
	f.source.flags(a, c)
}

func (f *createFlags) options(a *app, c *cobra.Command) ([]sandbox.CreateOption, error) {
	shared, err := f.makeFlags.options(a, c)
	if err != nil {
		return nil, err
	}
	var opts []sandbox.CreateOption
	for _, o := range append(shared, f.image.options(c)...) {
		opts = append(opts, o)
	}
	source, err := f.source.source(c.InOrStdin())
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

// source returns nil if no flag names a source.
func (s *source) source(stdin io.Reader) (sandbox.Source, error) {
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
		return sandbox.Tarball{Reader: stdin, Strip: s.strip}, nil
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
