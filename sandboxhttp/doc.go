// Package sandboxhttp serves sandboxes over HTTP, for platforms built on package sandbox:
// [Handler] the whole API, [LogsHandler] only logs, [Preview] the web servers in sandboxes.
//
// Whatever changes or runs something, or reads files, needs [WithAuthorize] or [WithToken];
// without one of them, or [WithoutAuthorization], it is refused. Requests that a browser sends
// from pages of other origins, and for hosts that are not listed with [WithHosts], are refused
// too, so that a handler on a developer's machine does not obey every page that the developer
// opens.
//
// An authorised client can do what the program can do with the engine, except name files of
// this machine and the engine's, see [WithHostFiles]. It can make this program connect to the
// servers that it names as sources.
package sandboxhttp
