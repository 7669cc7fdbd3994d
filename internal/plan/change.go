package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A Change is a set of settings that can be changed on an existing sandbox.
type Change int

// The settings that can be changed.
const (
	Tags Change = 1 << iota
	CPUs
	Memory
	Timeout
	StopTimeout
	Env
	Ports
	Mounts
	Command
	Network
	Image
	Persistence
	Removed // something of Removals
	Idle
)

// Removals are what a fork or an update takes away: keys, and targets of mounts.
type Removals struct {
	Env, Tags, Mounts []string
	// ImageEnv is the environment of the sandbox's image, whose variables come back.
	ImageEnv []string
}

// checkRemovals returns all problems of what is taken away. It completes the targets of mounts.
func (s *Sandbox) checkRemovals() (problems []error) {
	for _, k := range s.Without.Env {
		if err := CheckEnv(k, ""); err != nil {
			problems = append(problems, fmt.Errorf("WithoutEnv: %w", err))
		}
		if _, set := s.Env[k]; set {
			problems = append(problems, fmt.Errorf("environment variable %q is both set and taken away", k))
		}
	}
	for _, k := range s.Without.Tags {
		if k == "" {
			problems = append(problems, errors.New("WithoutTag: the key is empty"))
		}
		if _, set := s.Tags[k]; set {
			problems = append(problems, fmt.Errorf("tag %q is both set and taken away", k))
		}
	}
	for i, target := range s.Without.Mounts {
		if err := CheckTarget(target); err != nil {
			problems = append(problems, fmt.Errorf("WithoutMount: %w", err))
		}
		s.Without.Mounts[i] = path.Clean(target)
		if s.Has(Mounts) && slices.ContainsFunc(s.Mounts, func(m record.Mount) bool { return m.Target == s.Without.Mounts[i] }) {
			problems = append(problems, fmt.Errorf("mount at %q is both set and taken away", target))
		}
	}
	return problems
}

// withoutKeys returns a copy of m without keys. It is not nil.
func withoutKeys(m map[string]string, keys []string) map[string]string {
	rest := map[string]string{}
	maps.Copy(rest, m)
	for _, k := range keys {
		delete(rest, k)
	}
	return rest
}

// withoutTargets returns a copy of mounts without those at targets.
func withoutTargets(mounts []record.Mount, targets []string) []record.Mount {
	return slices.DeleteFunc(slices.Clone(mounts), func(m record.Mount) bool { return slices.ContainsFunc(targets, m.At) })
}

// Has reports whether any of those settings was given.
func (s *Sandbox) Has(c Change) bool { return s.Given&c != 0 }

// Inherit takes from the source of a fork every setting that is not given, and completes and
// checks the result.
func (s *Sandbox) Inherit(from *Sandbox) error {
	if s.Persistent == nil {
		s.Persistent = new(s.Name != "")
	}
	s.User, s.Workdir = cmp.Or(s.User, from.User), cmp.Or(s.Workdir, from.Workdir)
	s.OCIRuntime = cmp.Or(s.OCIRuntime, from.OCIRuntime)
	s.PidsLimit = cmp.Or(s.PidsLimit, from.PidsLimit)
	s.NewPrivileges = s.NewPrivileges || from.NewPrivileges
	s.StorageBytes = cmp.Or(s.StorageBytes, from.StorageBytes)
	if s.GPUs == nil {
		s.GPUs = from.GPUs
	}
	if !s.Has(Command) {
		s.Command = from.Command
	}
	if !s.Has(Env) {
		s.Env = withoutKeys(from.Env, s.Without.Env)
	}
	if !s.Has(Tags) {
		s.Tags = withoutKeys(from.Tags, s.Without.Tags)
	}
	if !s.Has(Network) {
		s.Network = from.Network
	}
	if !s.Has(Ports) {
		s.Ports = from.Ports
		s.MaxPorts = max(s.MaxPorts, len(s.Ports))
	}
	if !s.Has(CPUs) {
		s.VCPUs = from.VCPUs
		if !s.Has(Memory) {
			s.Memory = from.Memory
		}
	}
	if !s.Has(Timeout) {
		s.Timeout = from.Timeout
	}
	if !s.Has(StopTimeout) {
		s.StopTimeout = from.StopTimeout
	}
	if err := s.Complete(); err != nil {
		return err
	}
	if !s.Has(Idle) {
		s.Idle = from.Idle
	}
	s.Idle.Version = 0
	if !s.Has(Image) {
		s.Image, s.Runtime = from.Image, from.Runtime
	}
	for _, m := range withoutTargets(from.Mounts, s.Without.Mounts) { // unchecked: their directories may be gone
		if !s.Has(Mounts) || m.Declared && !hasTarget(s.Mounts, m.Target) {
			s.Mounts = append(s.Mounts, m)
		}
	}
	return nil
}

// FromRecord returns the settings that make a sandbox like an existing one, as its next
// session will be.
func FromRecord(rec record.Sandbox, got engine.Container, image engine.Image) (*Sandbox, error) {
	s := Recorded(rec)
	s.Mounts = append(s.Mounts, declared(rec, s.Mounts)...)
	s.VCPUs, s.Memory, s.PidsLimit = float64(got.NanoCPUs)/1e9, got.Memory, got.PidsLimit
	s.OCIRuntime, s.Env = got.Runtime, map[string]string{}
	for _, kv := range got.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && !slices.Contains(image.Env, kv) {
			s.Env[k] = v
		}
	}
	env, removed, err := rec.NewEnv()
	if err != nil {
		return nil, err
	}
	s.Env = withoutKeys(s.Env, removed)
	for k, v := range env {
		if s.Env[k] = v; slices.Contains(image.Env, k+"="+v) {
			delete(s.Env, k)
		}
	}
	return s, nil
}

// Recorded returns those settings of FromRecord that the record has, which are all but the
// limits, the OCI runtime, the environment and the image's volumes.
func Recorded(rec record.Sandbox) *Sandbox {
	folded := rec.Merged().Settings
	s := &Sandbox{
		Name: rec.Name, ID: rec.ID, Image: folded.Image, Runtime: folded.Runtime,
		User: folded.User, Workdir: folded.Workdir, Command: folded.Command, Tags: rec.Tags,
		Persistent: new(rec.Persists()), NewPrivileges: folded.NewPrivileges, StorageBytes: folded.StorageBytes, GPUs: folded.GPUs,
		Timeout: rec.Timeout(), StopTimeout: rec.Grace(), Idle: rec.Idle(),
	}
	for _, p := range folded.Ports {
		s.Ports = append(s.Ports, int(p))
	}
	s.Mounts = slices.Clone(rec.Settings.Mounts)
	for i := range s.Mounts {
		s.Mounts[i].Existing = true
	}
	if rec.Revision.Changes.Mounts == nil {
		return s
	}
	s.Mounts = nil
	for _, m := range *rec.Revision.Changes.Mounts {
		// An existing copy stays.
		if i := slices.IndexFunc(rec.Settings.Mounts, m.Same); i >= 0 {
			m = rec.Settings.Mounts[i]
			m.Existing = true
		}
		s.Mounts = append(s.Mounts, m)
	}
	return s
}

// Differences names the settings of s that were given, other than the network policy, and that an
// existing sandbox does not have.
func (s *Sandbox) Differences(rec record.Sandbox, got engine.Container) (names []string) {
	now := Recorded(rec)
	env := map[string]string{}
	for _, kv := range got.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	if changed, removed, err := rec.NewEnv(); err == nil {
		env = withoutKeys(env, removed)
		maps.Copy(env, changed)
	}
	for _, setting := range []struct {
		name         string
		given, equal bool
	}{
		{"image", s.Has(Image), s.Image == now.Image},
		{"user", s.User != "", s.User == now.User},
		{"working directory", s.Workdir != record.Workspace, s.Workdir == now.Workdir},
		{"command", s.Has(Command), slices.Equal(s.Command, now.Command)},
		{"environment", s.Has(Env), containsAll(env, s.Env)},
		{"tags", s.Has(Tags), maps.Equal(s.Tags, now.Tags)},
		{"ports", s.Has(Ports), slices.Equal(s.Ports, now.Ports)},
		{"CPUs", s.Has(CPUs), int64(s.VCPUs*1e9) == got.NanoCPUs},
		{"memory", s.Has(Memory), s.Memory == got.Memory},
		{"timeout", s.Has(Timeout), s.Timeout == now.Timeout},
		{"stop timeout", s.Has(StopTimeout), s.StopTimeout == now.StopTimeout},
		{"idle timeout", s.Has(Idle), s.Idle.TimeoutMS == now.Idle.TimeoutMS && s.Idle.IgnoreDetached == now.Idle.IgnoreDetached},
		{"persistence", s.Has(Persistence), *s.Persistent == *now.Persistent},
		{"mounts", s.Has(Mounts), slices.EqualFunc(s.Mounts, now.Mounts, func(a, b record.Mount) bool { return a.Target == b.Target && a.Same(b) })},
		{"GPUs", s.GPUs != nil, slices.Equal(s.GPUs, now.GPUs)},
		{"OCI runtime", s.OCIRuntime != "", s.OCIRuntime == got.Runtime},
	} {
		if setting.given && !setting.equal {
			names = append(names, setting.name)
		}
	}
	return names
}

// containsAll reports whether all has the variables of some.
func containsAll(all, some map[string]string) bool {
	for k, v := range some {
		if got, ok := all[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Revise writes the settings that the record keeps into c, and reports whether there has to be a revision. The engine
// keeps CPUs and memory, but a change of them is a revision, too: clients that remember them read them again.
func (s *Sandbox) Revise(c *record.Changes, rec record.Sandbox, got engine.Container) (bool, error) {
	if s.Given&^Network == 0 {
		return false, nil
	}
	rec.Revision.Changes = *c
	if got.HasSession() && s.Has(Timeout|StopTimeout) {
		// The running session keeps its timeouts, which only this records from now on.
		session := record.Session{StartedAt: got.StartedAt, ExpiresAt: rec.ExpiresAt(got.StartedAt)}
		if c.Session != nil && c.Session.StartedAt.Equal(got.StartedAt) {
			session = *c.Session
		}
		if session.TimeoutMS == nil {
			session.TimeoutMS, session.StopTimeoutMS = new(rec.Timeout().Milliseconds()), new(rec.StopTimeout().Milliseconds())
		}
		c.Session = &session
	}
	if s.Has(Persistence) {
		c.Persistent = s.Persistent
	}
	if s.Has(Tags) {
		c.Tags = new(maps.Clone(s.Tags))
	} else if len(s.Without.Tags) > 0 {
		tags := rec.Tags
		if c.Tags != nil {
			tags = *c.Tags
		}
		c.Tags = new(withoutKeys(tags, s.Without.Tags))
	}
	if s.Has(Timeout) {
		c.TimeoutMS = new(s.Timeout.Milliseconds())
	}
	if s.Has(StopTimeout) {
		c.StopTimeoutMS = new(s.StopTimeout.Milliseconds())
	}
	if s.Has(Idle) {
		idle := s.Idle
		idle.Version = max(idle.Version, rec.Idle().Version) + 1 // idle's is the running session's
		c.Idle = &idle
	}
	if s.Has(Ports) {
		c.Ports = new(append([]uint16{}, s.Published()...)) // not nil, which is no change
	}
	if s.Has(Command) {
		c.Command = &s.Command
	}
	if s.Has(Mounts) {
		c.Mounts = new(requested(s.Mounts))
	} else if len(s.Without.Mounts) > 0 {
		mounts := rec.Settings.Mounts
		if c.Mounts != nil {
			mounts = *c.Mounts
		}
		c.Mounts = new(requested(withoutTargets(mounts, s.Without.Mounts)))
	}
	if !s.Has(Env) && len(s.Without.Env) == 0 {
		return true, nil
	}
	return true, s.reviseEnv(c, rec)
}

// reviseEnv writes the changes of the environment into c, whose others rec has already.
func (s *Sandbox) reviseEnv(c *record.Changes, rec record.Sandbox) error {
	env, err := rec.AddedEnv()
	if err != nil {
		return err
	}
	env = withoutKeys(env, s.Without.Env)
	var removed []string
	if c.Env != nil {
		removed = slices.Clone(c.Env.Removed)
	}
	for _, k := range s.Without.Env {
		i := slices.IndexFunc(s.Without.ImageEnv, func(kv string) bool { return strings.HasPrefix(kv, k+"=") })
		if i >= 0 { // commands have the image's value again at once
			_, env[k], _ = strings.Cut(s.Without.ImageEnv[i], "=")
		} else if !slices.Contains(removed, k) {
			removed = append(removed, k)
		}
	}
	maps.Copy(env, s.Env)
	removed = slices.DeleteFunc(removed, func(k string) bool { _, set := env[k]; return set })
	if c.Env, err = rec.SealEnv(env, removed); err != nil {
		return errdefs.Classify(errdefs.Unsupported, err)
	}
	return nil
}

// KeepCopies makes mounts that are copies of directories, as [record.Sandbox] has them, into mounts
// of their volumes, except those that the sandbox itself has.
func (s *Sandbox) KeepCopies(rec record.Sandbox) {
	s.Mounts = attachCopies(s.Mounts, rec.Settings.Mounts)
}
