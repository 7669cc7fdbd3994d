package archive

import (
	"archive/tar"
	"context"
	"io"
	"io/fs"
	"time"
)

// PackForeign is Pack for what a tar archive of others has, checked as [FromForeign] does. Of its
// files' attributes only permissions without setuid and setgid, and times are taken.
func PackForeign(ctx context.Context, w io.Writer, r io.Reader, opts Options) (Report, error) {
	p := newPacker(ctx, w, opts)
	lost, err := p.foreign(r)
	report, err := p.finish(err)
	report.Append(lost)
	return report, err
}

func (p *packer) foreign(r io.Reader) (lost Report, err error) {
	top := &tar.Header{Typeflag: tar.TypeDir, Name: ".", Mode: 0o755, ModTime: time.Now()}
	if err := stream(p.tw.WriteHeader(top)); err != nil {
		return lost, err
	}
	within := false // a file's content, where no note can be
	skipped, err := FromForeign(p.ctx, r, "", p.opts.Strip, p.opts.Limits, func(e ForeignEntry, content io.Reader) error {
		if bits := PrivilegedBits(e.Mode); bits != "" && e.Typeflag != tar.TypeLink && e.Typeflag != tar.TypeSymlink {
			lost.Skip(e.Name, bits)
		}
		h := &tar.Header{Typeflag: e.Typeflag, Name: "./" + e.Name, Linkname: e.Linkname, Mode: e.Mode & 0o1777, ModTime: e.ModTime, Format: tar.FormatPAX}
		switch e.Typeflag {
		case tar.TypeLink:
			h.Linkname = "./" + e.Link
		case tar.TypeReg:
			h.Size = e.Size
		}
		if err := stream(p.tw.WriteHeader(h)); err != nil || h.Size == 0 {
			return err
		}
		within = true
		n, err := io.Copy(p.tw, content)
		p.report.Bytes += n
		if err == nil {
			within = false
			p.opts.progress(h.Name, &p.report)
		}
		return err
	})
	skipped.Append(lost)
	if within {
		err = stream(err)
	}
	return skipped, err
}

// TarFS writes the directory fsys as a tar archive that any program reads: holes are written out,
// and nothing says what was left out but the report. Without an error it has an end marker.
func TarFS(ctx context.Context, w io.Writer, fsys fs.FS, opts Options) (Report, error) {
	p := newPacker(ctx, w, opts)
	p.plain, p.began = true, time.Now()
	err := p.fsys(fsys)
	return p.finish(err)
}
