package examples_test

import (
	"fmt"
	"html"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// session is the terminal session of the README's picture, each command with what it prints.
var session = []struct{ command, prints string }{
	{`sandbox run -- node -p '6*7'`, `^42\n$`},
	{`sandbox create --name site --tag demo=cli --memory 512m --network allow=registry.npmjs.org`, `site\n$`},
	{`sandbox exec site -- sh -c 'echo draft > page.html; curl -sSm5 https://example.org'`, `Could not resolve host`},
	{`sandbox egress site`, `blocked +"example.org"`},
	{`sandbox fork site --name site-b`, `site-b\n$`},
	{`sandbox exec site-b -- cat page.html`, `^draft\n$`},
	{`sandbox list --tag demo=cli`, `site-b .*running(.*\n)+site .*running`},
	{`sandbox delete --delete-volumes site site-b`, `sandbox site-b: deleted\nvolume `},
}

// The README's picture of the command line is a session that works. SANDBOX_SCREENSHOTS names the directory
// that gets the picture, terminal.png.
func TestSessionOfTheCommandLine(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	bin := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/sandbox").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	run := func(command string) string {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		out, _ := cmd.CombinedOutput() // the exit codes are the commands'
		return string(out)
	}
	remove := session[len(session)-1].command
	run(remove)
	t.Cleanup(func() {
		cmd := exec.Command("sh", "-c", remove)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		cmd.Run() // nothing is left of a session that worked
	})
	var page strings.Builder
	lines := 0
	for _, s := range session {
		out := run(s.command)
		for try := 1; strings.Contains(out, "Resolving timed out") && try < 5; try++ { // a busy machine takes longer to refuse the name
			out = run(s.command)
		}
		if !regexp.MustCompile(s.prints).MatchString(out) {
			t.Fatalf("%s prints\n%s, want %s", s.command, out, s.prints)
		}
		fmt.Fprintf(&page, "<b>$</b> <i>%s</i>\n%s", html.EscapeString(s.command), html.EscapeString(out))
		lines += 1 + strings.Count(out, "\n")
	}
	if dir := os.Getenv("SANDBOX_SCREENSHOTS"); dir != "" {
		picture(t, page.String(), lines, filepath.Join(dir, "terminal.png"))
	}
}

// picture draws text as a terminal shows it, with a browser.
func picture(t *testing.T, text string, lines int, file string) {
	t.Helper()
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Fatal("there is no browser: see ci/clients")
	}
	source := filepath.Join(t.TempDir(), "terminal.html")
	page := `<meta charset="utf-8"><style>
		body { margin: 0; background: #15181e }
		pre { margin: 0; padding: 16px 20px; color: #c9d1d9; font: 15px/22px "DejaVu Sans Mono", monospace; white-space: pre }
		b { color: #6cc48d } i { color: #fff; font-style: normal }
	</style><pre>` + text + `</pre>`
	if err := os.WriteFile(source, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--user-data-dir="+t.TempDir(),
		fmt.Sprintf("--window-size=%d,%d", 1000, lines*22+32), "--screenshot="+file, "file://"+source).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", browser, err, out)
	}
	if err := shrink(file); err != nil {
		t.Error(err)
	}
}

// shrink writes a picture with its 128 most frequent colours, which are enough for text.
func shrink(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	full, err := png.Decode(f)
	if err != nil {
		return err
	}
	bounds := full.Bounds()
	counts := map[color.Color]int{}
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			counts[full.At(x, y)]++
		}
	}
	var palette color.Palette
	for c := range counts {
		palette = append(palette, c)
	}
	slices.SortFunc(palette, func(a, b color.Color) int { return counts[b] - counts[a] })
	small := image.NewPaletted(bounds, palette[:min(len(palette), 128)])
	draw.Draw(small, bounds, full, bounds.Min, draw.Src)
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	return encoder.Encode(out, small)
}
