//go:build linux

package proc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// trustRoot is the root of a system with these files, where a text of "-> x" is a link to x.
func trustRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range append(systemBundles, TrustBundle) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, dir)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		name = filepath.Join(root, name)
		var err error
		if to, isLink := strings.CutPrefix(text, "-> "); isLink {
			err = os.Symlink(filepath.Join(root, to), name)
		} else {
			err = os.WriteFile(name, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// textOf returns what a file has, "none" if there is none.
func textOf(root, name string) string {
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return "none"
	}
	return string(text)
}

func TestTrustComesAndGoes(t *testing.T) {
	t.Parallel()
	const before, cert = "the system's own\n", "the authority\n"
	const both = before + trustBegin + cert + trustEnd
	const debian, suse, arch, elsewhere = "/etc/ssl/certs/ca-certificates.crt", "/var/lib/ca-certificates/ca-bundle.pem", "/etc/ca-certificates/extracted/tls-ca-bundle.pem", "/elsewhere"
	for name, tt := range map[string]struct {
		files map[string]string
		want  map[string]string // with an authority
	}{
		"a file":              {map[string]string{debian: before}, map[string]string{debian: both, TrustBundle: both}},
		"links of a system":   {map[string]string{arch: before, debian: "-> " + arch}, map[string]string{arch: both, debian: both, TrustBundle: both}},
		"of another system":   {map[string]string{suse: before, "/etc/ssl/ca-bundle.pem": "-> " + suse}, map[string]string{suse: both, TrustBundle: both}},
		"a link elsewhere":    {map[string]string{elsewhere: before, debian: "-> " + elsewhere}, map[string]string{elsewhere: before, TrustBundle: both}},
		"no bundle":           {nil, map[string]string{TrustBundle: "none", debian: "none"}},
		"a link to nothing":   {map[string]string{debian: "-> " + elsewhere}, map[string]string{TrustBundle: "none", elsewhere: "none"}},
		"a link to no file":   {map[string]string{debian: "-> /etc"}, map[string]string{TrustBundle: "none"}},
		"links in our places": {map[string]string{elsewhere: before, TrustBundle: "-> " + elsewhere, TrustAuthority: "-> " + elsewhere}, map[string]string{elsewhere: before, TrustBundle: "none"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := trustRoot(t, tt.files)
			was := map[string]string{}
			for file := range tt.want {
				was[file] = textOf(root, file)
			}
			was[TrustBundle], was[TrustAuthority] = "none", "none"
			for _, step := range []string{"another\n", cert, "", ""} {
				if err := trustIn(root, []byte(step)); err != nil {
					t.Fatal(err)
				}
				want := was
				if step != "" {
					want = map[string]string{TrustAuthority: step}
					for file, text := range tt.want {
						want[file] = strings.ReplaceAll(text, cert, step)
					}
				}
				for file, text := range want {
					if got := textOf(root, file); got != text {
						t.Errorf("with %q %s: %q, want %q", step, file, got, text)
					}
				}
				env := trustVariables(root)
				if added := slices.Contains(env, "NODE_EXTRA_CA_CERTS="+TrustAuthority); added != (step != "") {
					t.Errorf("with %q the variables are %q", step, env)
				}
				if replaced := slices.Contains(env, "SSL_CERT_FILE="+TrustBundle); replaced != (want[TrustBundle] != "none") {
					t.Errorf("with %q the variables are %q", step, env)
				}
			}
		})
	}
}

// A tool that writes the bundle anew takes the authority's certificate from where it takes those of the
// system's owner.
func TestTrustSurvivesUpdateTools(t *testing.T) {
	t.Parallel()
	const before = "the system's own\n"
	bundle, anchor, link := systemBundles[0], anchors[0], anchorLinks[0]
	root := trustRoot(t, map[string]string{bundle: before})
	if err := os.MkdirAll(filepath.Dir(filepath.Join(root, anchor)), 0o755); err != nil {
		t.Fatal(err)
	}
	update := func() { // as that of Debian
		text := before
		if own := textOf(root, anchor); own != "none" {
			text += own
			if err := os.Symlink(filepath.Join(root, anchor), filepath.Join(root, link)); err != nil && !os.IsExist(err) {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(root, bundle), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, cert := range []string{"the authority\n", "the next session's\n"} {
		if err := trustIn(root, []byte(cert)); err != nil {
			t.Fatal(err)
		}
		update()
		if got := textOf(root, bundle); got != before+cert {
			t.Errorf("with %q the tool makes %q", cert, got)
		}
	}
	if err := trustIn(root, nil); err != nil {
		t.Fatal(err)
	}
	if got := textOf(root, bundle); got != before {
		t.Errorf("without an authority: %q", got)
	}
	for _, name := range append(anchors, link) {
		if _, err := os.Lstat(filepath.Join(root, name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
}

func TestTrustVariablesOfPrograms(t *testing.T) {
	t.Parallel()
	root := trustRoot(t, map[string]string{systemBundles[0]: "the system's own\n"})
	if err := trustIn(root, []byte("the authority\n")); err != nil {
		t.Fatal(err)
	}
	env := trustVariables(root)
	for _, name := range []string{"NODE_EXTRA_CA_CERTS", "DENO_CERT"} { // of Node.js and Deno
		if !slices.Contains(env, name+"="+TrustAuthority) {
			t.Errorf("the variables lack %s: %q", name, env)
		}
	}
	for _, name := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "PIP_CERT", // of OpenSSL, curl, Git and Python
		"AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", // of AWS's programs, Cargo and gRPC
	} {
		if !slices.Contains(env, name+"="+TrustBundle) {
			t.Errorf("the variables lack %s: %q", name, env)
		}
	}
}
