// Package report turns a judged case into the published documents and into text for
// people. Ring 0: pure.
//
// Everything that came from the node (owners, paths, names, details) goes through Clean
// before it is part of a text: a hostile file name must not drive a terminal.
package report
