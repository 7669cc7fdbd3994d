package engine_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

var update = flag.Bool("update", false, "write seccomp.json and the table of SECURITY.md")

// An engine's versions, in the forms in which engines and distributions write them, and the
// advisories that are about them.
func TestWarningsNameWhatIsKnownOfVersions(t *testing.T) {
	const ours, own, none = "name=seccomp,profile=builtin", "name=seccomp,profile=/etc/docker/seccomp.json", "name=apparmor"
	docker := func(engine, containerd, runc string) []object {
		return []object{{"Name": "Engine", "Version": engine}, {"Name": "containerd", "Version": containerd}, {"Name": "runc", "Version": runc}, {"Name": "docker-init", "Version": "0.19.0"}}
	}
	podman := func(runtime string) []object {
		return []object{{"Name": "Podman Engine", "Version": "5.8.6"}, {"Name": "Conmon", "Version": "conmon version 2.1.13, commit: unknown"}, {"Name": "OCI Runtime (x)", "Version": runtime}}
	}
	const copies, masked, workdir, overwritten, pipe, alg, rxrpc, esp, nft, agent = "CVE-2026-42306", "CVE-2025-31133", "CVE-2024-21626", "CVE-2019-5736",
		"CVE-2022-0847", "CVE-2026-31431", "CVE-2026-43500", "CVE-2026-43284", "CVE-2024-1086", "CVE-2022-0492"
	for _, tt := range []struct {
		server, platform, seccomp, kernel string
		components                        []object
		want                              []string // the first of each advisory, and subjects of warnings without one
	}{
		{"", "", ours, "6.18.44", docker("29.5.1", "2.2.0", "1.4.0"), nil},
		{"", "", ours, "7.3.0", docker("30.0.0", "2.2.0", "1.5.0-rc.1"), nil},
		{"", "", ours, "6.18.44", docker("2.0.0-beta.24", "v2.2.0", "1.3.6+ds1"), nil},
		{"", "", ours, "6.18.44", docker("2.0.0-beta.13", "2.2.0", "1.3.3"), []string{copies}},
		{"", "", ours, "6.18.44", docker("28.5.2+dfsg4", "1.7.24~ds1", "1.3.6+ds1-1"), []string{copies}},
		{"", "", ours, "6.1.0-40-amd64", docker("20.10.24+dfsg1", "1.6.20~ds1", "1.1.5+ds1"), []string{copies, masked, workdir}},
		{"", "", ours, "6.18.44", docker("29.5.1", "1.3.8", "1.1.12"), []string{masked}},
		{"", "", ours, "6.18.44", docker("29.5.1", "2.2.0", "1.2.7"), []string{masked}},
		{"", "", ours, "6.18.44", docker("29.5.1", "2.2.0", "1.2.8"), nil},
		{"", "", ours, "6.18.44", docker("29.5.1", "2.2.0", "1.3.2"), []string{masked}},
		{"", "", ours, "6.18.44", docker("29.5.1", "2.2.0", "1.4.0-rc.2"), []string{masked}},
		{"", "", ours, "6.18.44", docker("29.5.1", "2.2.0", "1.4.0-rc.3"), nil},
		{"", "", ours, "6.18.44", docker("29.5.1", "2.2.0", "1.0.0-rc92"), []string{masked}},
		{"", "", ours, "6.18.44", docker("29.5.1", "2.2.0", "1.0.0-rc93"), []string{masked, workdir}},
		{"", "", ours, "6.18.44", docker("29.5.1", "2.2.0", "1.0.0-rc6"), []string{masked, overwritten}},
		{"", "Docker Desktop 4.43.2 (199162)", ours, "6.18.44-linuxkit", docker("29.5.1", "2.2.0", "1.4.0"), []string{"CVE-2025-9074"}},
		{"", "Docker Desktop 4.24.0 (1)", ours, "6.18.44-linuxkit", docker("29.5.1", "2.2.0", "1.4.0"), nil},
		{"", "Docker Desktop 4.50.0 (1)", ours, "6.18.44-linuxkit", docker("29.5.1", "2.2.0", "1.4.0"), nil},
		{"", "Docker Engine - Community", ours, "5.10.101", docker("29.5.1", "2.2.0", "1.4.0"), []string{pipe}},
		{"", "", ours, "5.10.102-generic", docker("29.5.1", "2.2.0", "1.4.0"), nil},
		{"", "", ours, "5.4.200", docker("29.5.1", "2.2.0", "1.4.0"), nil},
		{"", "", ours, "5.16.10", docker("29.5.1", "2.2.0", "1.4.0"), []string{pipe}},
		{"", "", own, "6.18.21", docker("29.5.1", "2.2.0", "1.4.0"), []string{"seccomp", alg, rxrpc, esp}},
		{"", "", own, "6.18.44", docker("29.5.1", "2.2.0", "1.4.0"), []string{"seccomp"}},
		{"", "", none, "4.19.0", docker("29.5.1", "2.2.0", "1.4.0"), []string{"seccomp", alg, esp, nft, agent}},
		{"", "", none, "7.1-rc2", docker("29.5.1", "2.2.0", "1.4.0"), []string{"seccomp", rxrpc, esp}},
		{"", "", ours, "", docker("dev", "", ""), nil},
		{"Libpod/5.8.6 (linux)", "linux/amd64/debian-unknown", ours, "6.18.44", podman("runc version 1.1.5+ds1\ncommit: 1\nspec: 1.2.1"), []string{masked, workdir}},
		{"Libpod/5.8.6 (linux)", "", ours, "6.18.44", podman("runc version 1.3.6+ds1\ncommit: 1.3.6+ds1-1\nspec: 1.2.1"), nil},
		{"Libpod/5.8.6 (linux)", "", ours, "6.18.44", podman("crun version 1.21\ncommit: 1.1.5"), nil},
	} {
		e := answers(t, tt.server, map[string]func(string) any{
			"GET /info":               fixed(object{"SecurityOptions": []string{tt.seccomp}}),
			"GET /version":            fixed(object{"Platform": object{"Name": tt.platform}, "Components": tt.components, "KernelVersion": tt.kernel}),
			"GET /v4.0.0/libpod/info": fixed(object{}),
		})
		info, err := e.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		warnings, err := e.Warnings(t.Context(), info)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range warnings {
			got = append(got, append(w.Advisories, w.Subject)[0])
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s %s %s, kernel %s, %v: warnings of %q, want %q", tt.server, tt.platform, tt.seccomp, tt.kernel, tt.components, got, tt.want)
		}
	}
}

// SECURITY.md has the same advisories.
func TestSecurityListsTheAdvisories(t *testing.T) {
	const file, start, end = "../../SECURITY.md", "<!-- advisories -->\n", "<!-- end of advisories -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(text, []byte(start))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !ok || !closed {
		t.Fatalf("%s lacks the lines %s%s", file, start, end)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%s| advisory | in | fixed in | what it is | what of it reaches a sandbox |\n|---|---|---|---|---|\n", before, start)
	for _, a := range engine.Advisories {
		in := a.Component
		if a.Since != "" {
			in += " from " + a.Since
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", strings.Join(a.IDs, ", "), in, strings.Join(a.Fixed, ", "), a.What, a.Reaches)
	}
	fmt.Fprintf(&b, "%s%s", end, after)
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(text, b.Bytes()) {
		t.Errorf("%s differs from the advisories: go test ./internal/engine -run %s -update", file, t.Name())
	}
}
