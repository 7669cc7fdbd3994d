package engine

import (
	"net/http"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
)

// podmanRuntime is what Podman calls the OCI runtime of every container, whatever it is.
const podmanRuntime = "oci"

// Podman reports whether the engine is Podman's Docker-compatible service. It is known from the
// first reply on.
func (e *Engine) Podman() bool { return e.podman.Load() }

// describeDangling turns the reply about a symbolic link that leads nowhere into the one that Docker
// gives. Podman describes such a link, too, but with the status of a path that does not exist.
func describeDangling(req *http.Request, resp *http.Response) {
	if req.Method == http.MethodHead && resp.StatusCode == http.StatusNotFound && resp.Header.Get("X-Docker-Container-Path-Stat") != "" {
		resp.StatusCode = http.StatusOK
	}
}

// podmanClass classifies an error by Podman's words, for which it answers 500 where Docker has a
// status of its own.
func podmanClass(err error) error {
	text := err.Error()
	for _, c := range []struct {
		words string
		class error
	}{
		{"no such container", ErrNotFound},
		{"no such volume", ErrNotFound},
		{"no such exec session", ErrNotFound},
		{"image not known", ErrNotFound},
		{"container state improper", ErrConflict},
		{"name is already in use", ErrConflict},
	} {
		if strings.Contains(text, c.words) {
			return &classed{class: c.class, text: text, err: err}
		}
	}
	return err
}

// IsPortTaken reports whether a container did not start because somebody else has one of the ports
// that it publishes. Podman chooses them when it creates a container, Docker at each start.
func (e *Engine) IsPortTaken(err error) bool {
	return err != nil && e.podman.Load() && strings.Contains(err.Error(), "address already in use")
}

// shortTag returns the tag of an image as Docker writes it. Podman's have the registry, which is
// localhost for an image of no other.
func shortTag(tag string) string {
	for _, registry := range []string{"docker.io/library/", "docker.io/", "localhost/"} {
		if short, ok := strings.CutPrefix(tag, registry); ok {
			return short
		}
	}
	return tag
}

// dockers makes a container of Podman's one as Docker describes it: without the variables that
// Podman itself adds to the environment.
func (c *Container) dockers() {
	c.Image = shortTag(c.Image)
	if c.Runtime == podmanRuntime {
		c.Runtime = ""
	}
	added := []string{"HOME=/root", "HOSTNAME=" + c.Hostname, "container=podman", "container=oci"}
	c.Env = slices.DeleteFunc(c.Env, func(kv string) bool { return slices.Contains(added, kv) })
}

// forPodman has volumes that are not to be filled from the image be mounted so: Podman heeds that
// in the older form of mounts alone. That one has no place for labels, which Podman ignores.
func forPodman(host *container.HostConfig) {
	host.Mounts = slices.DeleteFunc(host.Mounts, func(m mount.Mount) bool {
		if m.Type != mount.TypeVolume || m.VolumeOptions == nil || !m.VolumeOptions.NoCopy ||
			m.Source == "" || strings.Contains(m.Target, ":") {
			return false
		}
		bind := m.Source + ":" + m.Target + ":nocopy"
		if m.ReadOnly {
			bind += ",ro"
		}
		host.Binds = append(host.Binds, bind)
		return true
	})
}
