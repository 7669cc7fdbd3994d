package sandboxhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

const tarType = "application/x-tar"

// readArchive answers with a directory as a tar archive. What goes wrong once that has begun breaks
// the connection off, so that the client sees that the archive is not complete.
func (h *handler) readArchive(w http.ResponseWriter, r *http.Request) error {
	return h.useFiles(r, func(files fileSystem, name string) error {
		header := w.Header()
		out := &begun{patient: &patient{ResponseWriter: w, control: http.NewResponseController(w)}, head: r.Method == http.MethodHead}
		defer out.control.SetWriteDeadline(time.Time{})
		header.Set("Content-Type", tarType)
		header.Set("Content-Disposition", "attachment")
		header.Set("Cache-Control", "no-cache")
		protect(header)
		_, err := files.CopyOutTar(r.Context(), name, out, sandbox.CopyOptions{})
		switch {
		case err == nil, out.written && out.head:
			return nil
		case out.written:
			panic(http.ErrAbortHandler)
		}
		header.Del("Content-Disposition")
		return err
	})
}

// begun is a response that knows whether anything was written. That to a HEAD ends there.
type begun struct {
	*patient
	head, written bool
}

func (b *begun) Write(p []byte) (int, error) {
	b.written = true
	if b.head {
		return 0, http.ErrBodyNotAllowed
	}
	return b.patient.Write(p)
}

// writeArchive writes a tar archive into a directory.
func (h *handler) writeArchive(w http.ResponseWriter, r *http.Request) error {
	return h.useFiles(r, func(files fileSystem, name string) error {
		limit := cmp.Or(h.maxUpload, DefaultMaxUpload)
		body := newUpload(w, r, limit)
		report, err := files.CopyInTar(r.Context(), body, name, sandbox.CopyOptions{MaxBytes: limit})
		if err == nil {
			answer(w, http.StatusOK, report)
			return nil
		}
		return uploadError(cmp.Or(body.failed, err), "archive")
	})
}

// removeFile removes a file, or with recursive a tree.
func (h *handler) removeFile(w http.ResponseWriter, r *http.Request) error {
	recursive, err := flag(r, "recursive", false)
	if err != nil {
		return err
	}
	return h.changeFiles(w, r, func(ctx context.Context, files fileSystem, name string) error {
		if recursive {
			return files.RemoveAll(ctx, name)
		}
		return files.Remove(ctx, name)
	})
}

// makeDirectory makes a directory, and the missing ones above it.
func (h *handler) makeDirectory(w http.ResponseWriter, r *http.Request) error {
	mode, err := modeOf(r)
	if err != nil {
		return err
	}
	return h.changeFiles(w, r, func(ctx context.Context, files fileSystem, name string) error {
		return files.MkdirAll(ctx, name, cmp.Or(mode, 0o755))
	})
}

// renameFile gives a file or directory another name.
func (h *handler) renameFile(w http.ResponseWriter, r *http.Request) error {
	return h.changeFiles(w, r, func(ctx context.Context, files fileSystem, name string) error {
		to := r.URL.Query().Get("to")
		if to == "" {
			return invalid("to is missing")
		}
		return files.Rename(ctx, name, to)
	})
}

// changeFiles makes a change that has no result.
func (h *handler) changeFiles(w http.ResponseWriter, r *http.Request, change func(context.Context, fileSystem, string) error) error {
	return h.useFiles(r, func(files fileSystem, name string) error {
		if err := change(r.Context(), files, name); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// uploadError returns the error of an upload for the client.
func uploadError(err error, what string) error {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &statusError{http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("the %s is larger than %d bytes", what, large.Limit)}
	}
	return err
}
