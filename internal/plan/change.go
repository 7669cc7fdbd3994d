package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/fault"
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
)

// Has reports whether any of those settings was given.
func (s *Sandbox) Has(c Change) bool { return s.Given&c != 0 }

// Inherit takes from the source of a fork every setting that is not given, and completes and
// checks the result.
func (s *Sandbox) Inherit(from *Sandbox) error {
	if s.Persistent == nil {
		s.Persistent = new(s.Name != "" || *from.Persistent)
	}
	s.User, s.Workdir = cmp.Or(s.User, from.User), cmp.Or(s.Workdir, from.Workdir)
	s.OCIRuntime = cmp.Or(s.OCIRuntime, from.OCIRuntime)
	s.PidsLimit = cmp.Or(s.PidsLimit, from.PidsLimit)
	s.NewPrivileges = s.NewPrivileges || from.NewPrivileges
	s.StorageBytes = cmp.Or(s.StorageBytes, from.StorageBytes)
	if !s.Has(Command) {
		s.Command = from.Command
	}
	if !s.Has(Env) {
		s.Env = from.Env
	}
	if !s.Has(Tags) {
		s.Tags = maps.Clone(from.Tags)
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
	s.Image, s.Runtime = from.Image, from.Runtime
	if !s.Has(Mounts) {
		s.Mounts = slices.Clone(from.Mounts) // unchecked: their directories may be gone
	}
	return nil
}

// FromRecord returns the settings that make a sandbox like an existing one, as its next
// session will be.
func FromRecord(rec record.Sandbox, got engine.Container, image engine.Image) (*Sandbox, error) {
	folded := rec.Merged().Settings
	s := &Sandbox{
		Name: rec.Name, ID: rec.ID, Image: folded.Image, Runtime: folded.Runtime,
		User: folded.User, Workdir: folded.Workdir, Command: folded.Command, Tags: rec.Tags,
		VCPUs: float64(got.NanoCPUs) / 1e9, Memory: got.Memory, PidsLimit: got.PidsLimit,
		Persistent: &rec.Persistent, OCIRuntime: got.Runtime,
		NewPrivileges: folded.NewPrivileges, StorageBytes: folded.StorageBytes,
		Timeout: rec.Timeout(), StopTimeout: rec.Grace(), Env: map[string]string{},
	}
	for _, p := range folded.Ports {
		s.Ports = append(s.Ports, int(p))
	}
	for _, kv := range got.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && !slices.Contains(image.Env, kv) {
			s.Env[k] = v
		}
	}
	env, err := rec.NewEnv()
	if err != nil {
		return nil, err
	}
	maps.Copy(s.Env, env)
	s.Mounts = slices.Clone(rec.Settings.Mounts)
	for i := range s.Mounts {
		s.Mounts[i].Existing = true
	}
	if rec.Revision.Changes.Mounts == nil {
		return s, nil
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
	return s, nil
}

// Revise writes the settings that the record keeps into c, and reports whether there are any.
func (s *Sandbox) Revise(c *record.Changes, rec record.Sandbox, got engine.Container) (bool, error) {
	if s.Given&^(CPUs|Memory|Network) == 0 {
		return false, nil
	}
	rec.Revision.Changes = *c
	if got.HasSession() && s.Has(Timeout|StopTimeout) {
		// The running session keeps its timeouts, which only this records from now on.
		if c.Session == nil || !c.Session.StartedAt.Equal(got.StartedAt) {
			c.Session = &record.Session{StartedAt: got.StartedAt, ExpiresAt: rec.ExpiresAt(got.StartedAt)}
		}
	}
	if s.Has(Tags) {
		c.Tags = new(maps.Clone(s.Tags))
	}
	if s.Has(Timeout) {
		c.TimeoutMS = new(s.Timeout.Milliseconds())
	}
	if s.Has(StopTimeout) {
		c.StopTimeoutMS = new(s.StopTimeout.Milliseconds())
	}
	if s.Has(Ports) {
		c.Ports = new(append([]uint16{}, s.Published()...)) // not nil, which is no change
	}
	if s.Has(Command) {
		c.Command = &s.Command
	}
	if s.Has(Mounts) {
		c.Mounts = new(append([]record.Mount{}, s.Mounts...))
	}
	if !s.Has(Env) {
		return true, nil
	}
	env, err := rec.AddedEnv()
	if err != nil {
		return false, err
	}
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, s.Env)
	if c.Env, err = rec.SealEnv(env); err != nil {
		return false, fault.Classify(fault.Unsupported, err)
	}
	return true, nil
}
