package sandboxhttp

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (h *handler) list(w http.ResponseWriter, r *http.Request) error {
	o, err := listOptions(r.URL.Query())
	if err != nil {
		return err
	}
	return list(func(ctx context.Context) ([]sandbox.Info, error) { return h.client.List(ctx, o) })(w, r)
}

// listOptions returns what the parameters of a list select.
func listOptions(q url.Values) (o sandbox.ListOptions, err error) {
	o = sandbox.ListOptions{Tags: map[string]string{}}
	for _, s := range q["status"] {
		o.States = append(o.States, sandbox.State(s))
	}
	for _, s := range q["tag"] {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return o, invalid("tag=%q is not key=value", s)
		}
		if was, given := o.Tags[key]; given && was != value {
			return o, invalid("tag %q: conflicting values %q and %q", key, was, value)
		}
		o.Tags[key] = value
	}
	o.Prefix = q.Get("prefix")
	return o, nil
}

// readable returns the error of a call that only reads a sandbox by its name: there is none with
// an impossible name.
func readable(err error) error {
	if errors.Is(err, sandbox.ErrInvalidArgument) {
		return &sandbox.Error{Op: "get", Err: sandbox.ErrNotFound}
	}
	return err
}

func (h *handler) inspect(w http.ResponseWriter, r *http.Request) error {
	st, err := h.client.Inspect(r.Context(), r.PathValue("name"))
	if err != nil {
		return readable(err)
	}
	answer(w, http.StatusOK, located(r, st))
	return nil
}

// located returns a status with the path of the log on this server.
func located(r *http.Request, st sandbox.Status) sandbox.Status {
	st.LogsEndpoint = prefix(r) + st.LogsEndpoint
	return st
}

// answerStatus answers with the status of a sandbox, without what takes time to measure.
func answerStatus(w http.ResponseWriter, r *http.Request, code int, sb *sandbox.Sandbox) error {
	st, err := sb.Summary(r.Context())
	if err != nil {
		return err
	}
	if code == http.StatusCreated {
		w.Header().Set("Location", prefix(r)+"/sandboxes/"+sb.ID())
	}
	answer(w, code, located(r, st))
	return nil
}

func (h *handler) create(w http.ResponseWriter, r *http.Request) error {
	var req createRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	opts, err := req.options(h.hostFiles)
	if err != nil {
		return err
	}
	if h.bound != nil {
		opts = append(opts, h.bound)
	}
	create := func(ctx context.Context, progress func(sandbox.Progress)) (*sandbox.Sandbox, error) {
		return h.client.Create(ctx, append(opts, sandbox.WithProgress(progress))...)
	}
	if pool, set := req.pooled(h.pools, h.hostFiles); pool != nil {
		create = func(ctx context.Context, _ func(sandbox.Progress)) (*sandbox.Sandbox, error) {
			return pool.Create(ctx, sandbox.WithSettings(set))
		}
	}
	if strings.Contains(r.Header.Get("Accept"), jsonLines) {
		return sendCreation(w, r, create)
	}
	sb, err := create(r.Context(), func(sandbox.Progress) {})
	if err != nil {
		return err
	}
	defer sb.Detach()
	return answerStatus(w, r, http.StatusCreated, sb)
}

func (h *handler) fork(w http.ResponseWriter, r *http.Request) error {
	var req forkRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	opts, err := req.options(h.hostFiles)
	if err != nil {
		return err
	}
	if h.bound != nil {
		opts = append(opts, h.bound)
	}
	if req.Count == nil {
		sb, err := h.client.Fork(r.Context(), r.PathValue("name"), opts...)
		if err != nil {
			return err
		}
		defer sb.Detach()
		return answerStatus(w, r, http.StatusCreated, sb)
	}
	forks, err := h.client.ForkN(r.Context(), r.PathValue("name"), *req.Count, opts...)
	made := []sandbox.Status{}
	for _, f := range forks {
		if f.Sandbox == nil {
			continue
		}
		st, e := f.Sandbox.Summary(r.Context())
		if e != nil {
			err = errors.Join(err, e)
		} else {
			made = append(made, located(r, st))
		}
		f.Sandbox.Detach()
	}
	if err == nil {
		answer(w, http.StatusCreated, made)
		return nil
	}
	code, f := explain(err)
	answer(w, code, struct {
		failed
		Sandboxes []sandbox.Status `json:"sandboxes"` // those that were created all the same
	}{failed{f}, made})
	return nil
}

func (h *handler) update(w http.ResponseWriter, r *http.Request) error {
	var req updateRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	opts, err := req.options(h.hostFiles)
	if err != nil {
		return err
	}
	return h.use(r, func(sb *handle) error {
		if err := sb.Update(r.Context(), opts...); err != nil {
			return err
		}
		return answerStatus(w, r, http.StatusOK, sb.Sandbox)
	})
}

// use calls fn with a handle on the sandbox of a request.
func (h *handler) use(r *http.Request, fn func(*handle) error) error {
	sb, err := h.handles.get(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	defer sb.done()
	return sb.checked(fn(sb))
}

// state is the JSON of an answer to a start or stop.
type state struct {
	Status sandbox.State `json:"status"`
}

func (h *handler) start(w http.ResponseWriter, r *http.Request) error {
	return h.changeState(w, r, (*sandbox.Sandbox).Start)
}

func (h *handler) stop(w http.ResponseWriter, r *http.Request) error {
	return h.changeState(w, r, (*sandbox.Sandbox).Stop)
}

func (h *handler) changeState(w http.ResponseWriter, r *http.Request, change func(*sandbox.Sandbox, context.Context) (sandbox.State, error)) error {
	if err := decode(w, r, &struct{}{}); err != nil {
		return err
	}
	return h.use(r, func(sb *handle) error {
		now, err := change(sb.Sandbox, r.Context())
		if err != nil {
			return err
		}
		answer(w, http.StatusOK, state{now})
		return nil
	})
}

func (h *handler) delete(w http.ResponseWriter, r *http.Request) error {
	preserve, err := flag(r, "preserveVolume", true)
	if err != nil {
		return err
	}
	snapshots, err := flag(r, "snapshots", false)
	if err != nil {
		return err
	}
	report, err := h.client.Delete(r.Context(), r.PathValue("name"), sandbox.DeleteOptions{Volumes: !preserve, Snapshots: snapshots})
	answerReport(w, report, err)
	return nil
}

// answerReport answers with the report of a deletion, which there is with an error, too.
func answerReport(w http.ResponseWriter, report sandbox.DeleteReport, err error) {
	report.Volumes = append([]sandbox.VolumeOutcome{}, report.Volumes...) // an array even if it is empty
	if err == nil {
		answer(w, http.StatusOK, report)
		return
	}
	code, f := explain(err)
	answer(w, code, deleteFailure{failed{f}, report})
}

// deleteFailure is the error of a deletion, with the report of what it did.
type deleteFailure struct {
	failed
	sandbox.DeleteReport
}

func (h *handler) processes(w http.ResponseWriter, r *http.Request) error {
	return reading(h, w, r, (*sandbox.Sandbox).Processes)
}

func (h *handler) egress(w http.ResponseWriter, r *http.Request) error {
	return reading(h, w, r, (*sandbox.Sandbox).Egress)
}

// reading answers with what a call lists that does not resume the sandbox.
func reading[T any](h *handler, w http.ResponseWriter, r *http.Request, call func(*sandbox.Sandbox, context.Context) ([]T, error)) error {
	sb, err := h.handles.get(r.Context(), r.PathValue("name"))
	if err != nil {
		return readable(err)
	}
	defer sb.done()
	return list(func(ctx context.Context) ([]T, error) { return call(sb.Sandbox, ctx) })(w, r)
}
