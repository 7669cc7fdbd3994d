package sandboxhttp

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/seed-1a2d6d8f/sandbox"
)

type signalRequest struct {
	Signal string `json:"signal"`
}

// signal sends a signal to a detached command, or kills it with all processes that it started.
func (h *handler) signal(w http.ResponseWriter, r *http.Request) error {
	var req signalRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	return h.use(r, func(sb *handle) error {
		cmd, err := sb.Process(r.Context(), r.PathValue("process"))
		if err != nil {
			return err
		}
		if req.Signal == "" {
			err = cmd.Kill()
		} else if sig, e := sandbox.ParseSignal(req.Signal); e != nil {
			err = e
		} else {
			err = cmd.Signal(sig)
		}
		if err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

type extendRequest struct {
	DurationMS int64 `json:"durationMs"`
}

// extend prolongs the session.
func (h *handler) extend(w http.ResponseWriter, r *http.Request) error {
	var req extendRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	d, err := duration("durationMs", req.DurationMS)
	if err != nil {
		return err
	}
	return h.use(r, func(sb *handle) error {
		if err := sb.ExtendTimeout(r.Context(), d); err != nil {
			return err
		}
		return answerStatus(w, r, http.StatusOK, sb.Sandbox)
	})
}

// prune removes leftovers.
func (h *handler) prune(w http.ResponseWriter, r *http.Request) error {
	if err := decode(w, r, &struct{}{}); err != nil {
		return err
	}
	report, err := h.client.Prune(r.Context())
	report.Removed, report.Failed = append([]string{}, report.Removed...), append([]string{}, report.Failed...)
	code, f := explained(err)
	answer(w, code, pruneAnswer{f, report})
	return nil
}

// pruneAnswer is the report of a prune, with the error if there is one.
type pruneAnswer struct {
	*failed
	sandbox.PruneReport
}

// verdict is what a network policy says about a connection.
type verdict struct {
	Allowed bool   `json:"allowed"`
	Rule    string `json:"rule"`
}

// checkNetwork says what a policy that a request has allows.
func (h *handler) checkNetwork(w http.ResponseWriter, r *http.Request) error {
	policy, err := sandbox.ParseNetworkPolicy(r.URL.Query().Get("policy"))
	if err != nil {
		return err
	}
	return answerVerdict(w, r.URL.Query(), policy)
}

// checkSandboxNetwork says what the policy of a sandbox allows.
func (h *handler) checkSandboxNetwork(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.handles.get(r.Context(), r.PathValue("name"))
	if err != nil {
		return readable(err)
	}
	defer sb.done()
	st, err := sb.Summary(r.Context())
	if err != nil {
		return err
	}
	return answerVerdict(w, r.URL.Query(), st.Network)
}

func answerVerdict(w http.ResponseWriter, q url.Values, policy sandbox.NetworkPolicy) error {
	port := 443
	if text := q.Get("port"); text != "" {
		var err error
		if port, err = strconv.Atoi(text); err != nil {
			return invalid("port=%q is not a number", text)
		}
	}
	var (
		v   verdict
		err error
	)
	if v.Allowed, v.Rule, err = policy.Allows(q.Get("host"), port); err != nil {
		return err
	}
	answer(w, http.StatusOK, v)
	return nil
}

// alive says that the server answers, and nothing else: who asks needs no token.
type alive struct {
	OK bool `json:"ok"`
}

const (
	aliveAction = "healthz"
	alivePath   = "/" + aliveAction
)

func serveAlive(w http.ResponseWriter, _ *http.Request) error {
	answer(w, http.StatusOK, alive{true})
	return nil
}
