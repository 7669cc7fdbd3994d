package engine

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// An Advisory is a known way out of containers.
type Advisory struct {
	IDs       []string
	Component string   // whose versions Since and Fixed are
	Since     string   // the first version that has it; empty is any
	Fixed     []string // the first version of each branch without it, the newest last
	What      string
	// Reaches says what of it reaches a sandbox. Denied: only without the seccomp profile of
	// sandboxes. Never: not at all.
	Reaches       string
	Denied, Never bool
}

// The components of an engine that advisories are about.
const (
	componentEngine     = "engine"
	componentDesktop    = "Docker Desktop"
	componentContainerd = "containerd"
	componentRunc       = "runc"
	componentKernel     = "kernel"
)

// Advisories are what [Engine.Warnings] looks for. SECURITY.md has the same table.
var Advisories = []Advisory{
	{
		IDs: []string{"CVE-2026-42306", "CVE-2026-41568"}, Component: componentEngine, Fixed: []string{"2.0.0-beta.14", "29.5.1"},
		What:    "a process that exchanges links while files are copied from or to its container makes the engine mount or make files anywhere on the machine",
		Reaches: "a stopped sandbox with a mount below a directory that something other than a sandbox changes while its files are read",
	},
	{
		IDs: []string{"CVE-2026-41567"}, Component: componentEngine, Fixed: []string{"2.0.0-beta.14", "29.5.1"},
		What:    "the engine unpacks a compressed archive for a container with that container's own programs",
		Reaches: "no sandbox: archives for the engine are not compressed", Never: true,
	},
	{
		IDs: []string{"CVE-2025-9074"}, Component: componentDesktop, Since: "4.25", Fixed: []string{"4.44.3"},
		What:    "containers reach the engine's API at 192.168.65.7:2375",
		Reaches: "sandboxes under AllowAll, and those whose Subnets allow this address",
	},
	{
		IDs: []string{"CVE-2020-15257"}, Component: componentContainerd, Fixed: []string{"1.3.9", "1.4.3"},
		What:    "containers in the machine's network namespace command containerd's shim",
		Reaches: "no sandbox: none is in the machine's network", Never: true,
	},
	{
		IDs: []string{"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}, Component: componentRunc, Fixed: []string{"1.2.8", "1.3.3", "1.4.0-rc.3"},
		What:    "a process that exchanges files while a container starts makes runc mount or write elsewhere in /proc",
		Reaches: "a running sandbox that has a writable directory or volume together with one that starts; the second not, since no sandbox has a console",
	},
	{
		IDs: []string{"CVE-2024-21626"}, Component: componentRunc, Since: "1.0.0-rc93", Fixed: []string{"1.1.12"},
		What:    "a working directory below /proc/self/fd leads to the machine's files",
		Reaches: "root inside, that leaves a link in the place of the working directory for the next session",
	},
	{
		IDs: []string{"CVE-2019-5736"}, Component: componentRunc, Fixed: []string{"1.0.0-rc7"},
		What:    "root in a container overwrites runc when a program is started there",
		Reaches: "root inside, at each connection to the sandbox",
	},
	{
		IDs: []string{"CVE-2022-0847"}, Component: componentKernel, Since: "5.8", Fixed: []string{"5.10.102", "5.15.25", "5.16.11"},
		What:    "a pipe writes to files that may only be read, also to those of images (Dirty Pipe)",
		Reaches: "every sandbox",
	},
	{
		IDs: []string{"CVE-2026-31431"}, Component: componentKernel, Since: "4.14",
		Fixed:   []string{"5.10.254", "5.15.204", "6.1.170", "6.6.137", "6.12.85", "6.18.22", "6.19.12", "7.0"},
		What:    "a socket of AF_ALG writes to files that may only be read (Copy Fail)",
		Reaches: "no sandbox: its profile denies AF_ALG", Denied: true,
	},
	{
		IDs: []string{"CVE-2026-43500"}, Component: componentKernel, Since: "5.3", Fixed: []string{"6.18.29", "7.0.6", "7.1-rc3"},
		What:    "a socket of AF_RXRPC writes to files that may only be read (Dirty Frag)",
		Reaches: "no sandbox: its profile denies AF_RXRPC", Denied: true,
	},
	{
		IDs: []string{"CVE-2026-43284"}, Component: componentKernel, Since: "4.11",
		Fixed:   []string{"5.10.255", "5.15.205", "6.1.171", "6.6.138", "6.12.87", "6.18.28", "7.0.5", "7.1"},
		What:    "IPsec, which a user namespace may configure, writes to files that may only be read (Dirty Frag)",
		Reaches: "no sandbox: its profile denies user namespaces", Denied: true,
	},
	{
		IDs: []string{"CVE-2024-1086"}, Component: componentKernel, Since: "3.15", Fixed: []string{"6.8"},
		What:    "nftables, which a user namespace may configure, uses memory that it has freed",
		Reaches: "no sandbox: its profile denies user namespaces", Denied: true,
	},
	{
		IDs: []string{"CVE-2022-0492"}, Component: componentKernel, Fixed: []string{"5.17-rc3"},
		What:    "a user namespace that mounts a cgroup of version 1 makes the kernel run a program on the machine",
		Reaches: "no sandbox: its profile denies user namespaces and mounts", Denied: true,
	},
}

// A Warning is about something on the engine's machine that may be a way out of sandboxes.
type Warning struct {
	Subject    string // a component, or "seccomp"
	Advisories []string
	Text       string
}

// Warnings returns what is known of an engine's versions and settings. Distributions fix old
// versions, whose numbers do not tell.
func (e *Engine) Warnings(ctx context.Context, i Info) ([]Warning, error) {
	o, err := e.seccompOf(ctx, i)
	if err != nil {
		return nil, err
	}
	var all []Warning
	switch {
	case !i.hasSeccomp():
		all = append(all, Warning{Subject: "seccomp", Text: "the engine filters no system calls: sandboxes reach all of the kernel"})
	case o.sandbox == "":
		all = append(all, Warning{Subject: "seccomp", Text: "the engine is configured with a seccomp profile of its own, which sandboxes have in place of the one of this package"})
	}
	for _, a := range Advisories {
		version := i.Components[a.Component]
		if a.Never || a.Denied && o.sandbox != "" || !a.affects(version) {
			continue
		}
		reaches := a.Reaches
		if a.Denied {
			reaches = "every sandbox, unless the engine's seccomp profile denies that"
		}
		all = append(all, Warning{
			Subject: a.Component, Advisories: a.IDs,
			Text: fmt.Sprintf("%s %s may have %s, fixed in %s unless its distribution has done so before: %s. It reaches %s",
				a.Component, version, strings.Join(a.IDs, ", "), strings.Join(a.Fixed, ", "), a.What, reaches),
		})
	}
	return all, nil
}

// affects reports whether a version has it, by its number. One that can't be read has not.
func (a Advisory) affects(version string) bool {
	v, ok := parseVersion(version)
	if since, _ := parseVersion(a.Since); !ok || slices.Compare(v, since) < 0 {
		return false
	}
	var newest []int
	for _, text := range a.Fixed {
		fixed, _ := parseVersion(text)
		if slices.Equal(v[:2], fixed[:2]) {
			return slices.Compare(v, fixed) < 0
		}
		newest = fixed
	}
	return slices.Compare(v, newest) < 0
}

// A version, and what may follow: a candidate for a release. Whatever else follows is a
// distribution's.
var versionText = regexp.MustCompile(`^v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-~]?(alpha|beta|rc)[.-]?(\d+))?`)

// parseVersion returns five numbers: the version's, one for the kind of candidate, which is the
// highest for a release, and that of the candidate.
func parseVersion(text string) ([]int, bool) {
	m := versionText.FindStringSubmatch(text)
	if m == nil {
		return []int{0, 0, 0, 0, 0}, false
	}
	v := make([]int, 5)
	for i, n := range []string{m[1], m[2], m[3]} {
		v[i], _ = strconv.Atoi(cmp.Or(n, "0"))
	}
	v[3] = map[string]int{"alpha": 0, "beta": 1, "rc": 2, "": 3}[m[4]]
	v[4], _ = strconv.Atoi(cmp.Or(m[5], "0"))
	return v, true
}
