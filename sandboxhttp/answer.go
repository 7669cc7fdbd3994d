package sandboxhttp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"reflect"
	"regexp"
)

// failure is the JSON of an error.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// failed is the JSON of a response that reports an error.
type failed struct {
	Error failure `json:"error"`
}

// A statusError is an error of this package, with its status and code.
type statusError struct {
	status     int
	code, text string
}

func (e *statusError) Error() string   { return e.text }
func (e *statusError) StatusCode() int { return e.status }

// invalid returns an error of the status 400.
func invalid(format string, args ...any) error {
	return &statusError{http.StatusBadRequest, "invalid_argument", fmt.Sprintf(format, args...)}
}

// codes are the identifiers of the errors that callers of package sandbox branch on, and of
// others that are the caller's. The first that applies counts.
var codes = []struct {
	err    error
	code   string
	status int // instead of that of the error, if not 0
}{
	{sandbox.ErrSessionLost, "session_lost", 0}, // is one of others, too
	{sandbox.ErrNotFound, "not_found", 0},
	{sandbox.ErrVolumeNotFound, "volume_not_found", 0},
	{sandbox.ErrSnapshotNotFound, "snapshot_not_found", 0},
	{sandbox.ErrProcessNotFound, "process_not_found", 0},
	{sandbox.ErrImageNotFound, "image_not_found", 0},
	{sandbox.ErrExists, "exists", 0},
	{sandbox.ErrForeign, "foreign", 0},
	{sandbox.ErrVolumeInUse, "volume_in_use", 0},
	{sandbox.ErrSnapshotInUse, "snapshot_in_use", 0},
	{sandbox.ErrInvalidArgument, "invalid_argument", 0},
	{sandbox.ErrEngineUnavailable, "engine_unavailable", 0},
	{sandbox.ErrUnsupported, "unsupported", 0},
	{sandbox.ErrNotRunning, "not_running", 0},
	{sandbox.ErrClosed, "closed", 0},
	{sandbox.ErrTimeout, "timeout", 0},
	{sandbox.ErrTooLarge, "too_large", 0},
	{sandbox.ErrNoCapacity, "no_capacity", 0},
	{exec.ErrNotFound, "command_not_found", http.StatusBadRequest},
	{os.ErrProcessDone, "process_done", 0},
	{fs.ErrNotExist, "file_not_found", 0},
	{fs.ErrPermission, "permission_denied", 0},
	{fs.ErrExist, "file_exists", 0},
	{syscall.ENOTDIR, "invalid_argument", 0},
	{syscall.EISDIR, "invalid_argument", 0},
	{syscall.ELOOP, "invalid_argument", 0},
	{syscall.ENAMETOOLONG, "invalid_argument", 0},
	{syscall.EINVAL, "invalid_argument", 0},
	{syscall.EXDEV, "invalid_argument", 0},
	{syscall.ENOEXEC, "invalid_argument", 0},
	{syscall.EROFS, "permission_denied", 0},
	{syscall.EBUSY, "busy", 0},
	{syscall.ETXTBSY, "busy", 0},
	{syscall.EFBIG, "too_large", 0},
	{syscall.ENOSPC, "no_space", 0},
	{syscall.EDQUOT, "no_space", 0},
	{context.DeadlineExceeded, "timeout", 0},
	{context.Canceled, "canceled", 0},
}

// statusCodes are the codes of errors that have only a status.
var statusCodes = map[int]string{
	http.StatusBadRequest: "invalid_argument", http.StatusUnauthorized: "unauthorized", http.StatusForbidden: "forbidden",
	http.StatusNotFound: "not_found", http.StatusMethodNotAllowed: "method_not_allowed",
	http.StatusRequestEntityTooLarge: "too_large", http.StatusUnsupportedMediaType: "unsupported_media_type",
	http.StatusRequestedRangeNotSatisfiable: "invalid_range", http.StatusPreconditionFailed: "precondition_failed",
}

// statusOf returns the status of the first error of the chain that has one.
func statusOf(err error) (int, bool) {
	if e, ok := errors.AsType[interface {
		error
		StatusCode() int
	}](err); ok {
		return e.StatusCode(), true
	}
	return 0, false
}

// public returns the text of an error without what other servers said and without names of this
// machine's files: whoever chooses a server would else read its answers.
func public(err error) string {
	text := err.Error()
	var hide func(error)
	hide = func(err error) {
		if e, is := err.(interface {
			error
			Public() string
		}); is {
			if said := e.Error(); strings.Contains(text, said) {
				text = strings.ReplaceAll(text, said, e.Public())
			} else {
				text = e.Public()
			}
			return
		}
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			if next := e.Unwrap(); next != nil {
				hide(next)
			}
		case interface{ Unwrap() []error }:
			for _, next := range e.Unwrap() {
				hide(next)
			}
		}
	}
	hide(err)
	return text
}

// explained returns the status of a response that has a report, and its error, if there is one.
func explained(err error) (status int, f *failed) {
	if err == nil {
		return http.StatusOK, nil
	}
	status, text := explain(err)
	return status, &failed{text}
}

// explain returns the status of an error and its JSON.
func explain(err error) (status int, f failure) {
	status, f = http.StatusInternalServerError, failure{"internal", inFields(public(err))}
	if own, ok := statusOf(err); ok {
		status = own
	}
	if code, ok := statusCodes[status]; ok {
		f.Code = code
	}
	if _, refused := errors.AsType[*refusedError](err); refused {
		return status, f
	}
	if own, ok := errors.AsType[*statusError](err); ok {
		f.Code = own.code
		return status, f
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			f.Code = c.code
			status = cmp.Or(c.status, status)
			break
		}
	}
	if f.Code == "not_found" && errors.Is(err, sandbox.ErrNotFound) {
		f.Message = sandbox.ErrNotFound.Error()
	}
	return status, f
}

// fail answers with an error.
func fail(w http.ResponseWriter, err error) {
	status, f := explain(err)
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	answer(w, status, failed{f})
}

// refuse answers with an error that has only a status.
func refuse(w http.ResponseWriter, status int, text string) {
	fail(w, &statusError{status, statusCodes[status], text})
}

func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is a type of this package or the root
	}
	answerBody(w, status, append(body, '\n'))
}

// answerBody answers with JSON.
func answerBody(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	protect(h)
	control := http.NewResponseController(w)
	defer control.SetWriteDeadline(time.Time{})
	w.WriteHeader(status)
	for piece := range slices.Chunk(body, 64<<10) { // a slow client may take long for all of them
		// Not every ResponseWriter has deadlines; the server's own remain.
		_ = control.SetWriteDeadline(time.Now().Add(stallTimeout))
		if _, err := w.Write(piece); err != nil {
			return // the client has disconnected, or reads nothing
		}
	}
	control.Flush()
}

// protect keeps browsers from taking an answer for something else, from loading it into pages of
// other origins, and from passing on an address that has a token.
func protect(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// maxBody bounds the JSON of a request, in bytes.
const maxBody = 1 << 20

// bodyTimeout bounds how long the JSON of a request may take to come. Only tests change it.
var bodyTimeout = 30 * time.Second

var errStalled = &statusError{http.StatusRequestTimeout, "timeout", "the body of the request did not come in time"}

// decode reads the JSON of a request into v. A request without a body leaves v unchanged.
// Unknown fields are an error.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	control := http.NewResponseController(w)
	// Not every ResponseWriter has deadlines; the server's own remain.
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &statusError{http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("the body is longer than %d bytes", large.Limit)}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errStalled
	}
	if err != nil {
		return invalid("read the body: %v", err)
	}
	// Not after an error: before it sends an answer, the server reads what is left of a body.
	_ = control.SetReadDeadline(time.Time{})
	if len(body) == 0 {
		return nil
	}
	// A page of another origin can send other types without asking first.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &statusError{http.StatusUnsupportedMediaType, "unsupported_media_type", "the body must be JSON, and the Content-Type application/json"}
	}
	return unmarshal(body, v)
}

// unmarshal decodes JSON that has nothing unknown and nothing after it.
func unmarshal(body []byte, v any) error {
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		if t, is := errors.AsType[*json.UnmarshalTypeError](err); is {
			field := "it"
			if t.Field != "" { // with the names of embedded types
				field = strconv.Quote(strings.TrimPrefix(strings.TrimPrefix(t.Field, "settings."), "plainSettings."))
			}
			return invalid("the body: %s takes %s, not %s", field, jsonType(t.Type), t.Value)
		}
		return invalid("the body: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid("the body has more than one value")
	}
	return nil
}

// jsonType is what a field of a type is in JSON.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return jsonType(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "an integer"
}

// option finds the names of the library's options in a text.
var option = regexp.MustCompile(`\bWith[A-Z][A-Za-z]+\b`)

// fieldOf has the field of requests for each of the library's options that may be wrong.
var fieldOf = map[string]string{
	"WithCommand": "command", "WithEnv": "env", "WithID": "id", "WithIdleTimeout": "idleTimeoutMs", "WithImage": "image", "WithMemory": "memoryBytes",
	"WithGPUs": "gpus", "WithMounts": "mounts", "WithName": "name", "WithNetworkPolicy": "network", "WithOCIRuntime": "ociRuntime", "WithPersistent": "persistent",
	"WithPidsLimit": "pidsLimit", "WithPorts": "ports", "WithRuntime": "runtime", "WithSource": "source", "WithStopTimeout": "stopTimeoutMs",
	"WithStorageSize": "storageBytes", "WithTags": "tags", "WithTimeout": "timeoutMs", "WithUser": "user", "WithVCPUs": "vcpus", "WithWorkdir": "workdir",
}

// inFields replaces the names of options by those of fields.
func inFields(text string) string {
	return option.ReplaceAllStringFunc(text, func(name string) string { return cmp.Or(fieldOf[name], name) })
}

// checkHeader fails if a request to change something has a header that would be of consequence and isn't
// followed: a condition, a part of a file, or a coding of the body.
func checkHeader(r *http.Request) error {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	for key, text := range map[string]string{
		"Content-Range": "a file is written as a whole", "If-Match": "a change has no conditions",
		"If-None-Match": "a change has no conditions", "If-Unmodified-Since": "a change has no conditions",
	} {
		if r.Header.Get(key) != "" {
			return invalid("%s: %s, leave it out", key, text)
		}
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return &statusError{http.StatusUnsupportedMediaType, "unsupported_media_type", fmt.Sprintf("Content-Encoding %q: send the body as it is", coding)}
	}
	return nil
}

// repeated are the parameters that may be given more than once.
var repeated = []string{"status", "tag"}

// checkQuery fails if a request has another parameter than these, or one twice.
func checkQuery(r *http.Request, known ...string) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("the parameters: %v", err)
	}
	for _, key := range slices.Sorted(maps.Keys(query)) {
		switch {
		case slices.Contains(known, key) && len(query[key]) > 1 && !slices.Contains(repeated, key):
			return invalid("%s is given twice", key)
		case slices.Contains(known, key):
		case len(known) == 0:
			return invalid("unknown parameter %q: there is none", key)
		default:
			return invalid("unknown parameter %q: use %s", key, strings.Join(known, ", "))
		}
	}
	return nil
}

// flag reads a parameter that is true or false. absent is its value if it is not given.
func flag(r *http.Request, key string, absent bool) (bool, error) {
	switch q := r.URL.Query(); {
	case !q.Has(key):
		return absent, nil
	case q.Get(key) == "true":
		return true, nil
	case q.Get(key) == "false":
		return false, nil
	default:
		return false, invalid("%s=%q is neither true nor false", key, q.Get(key))
	}
}
