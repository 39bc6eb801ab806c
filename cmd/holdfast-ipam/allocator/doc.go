// Package allocator loads the configuration of host-local: which is accepted, which ranges
// it means, and the words in which the rest is refused.
//
// It is what the plugins module's package of that name (v1.10.0, Apache-2.0, the CNI authors)
// does, without its pkg/ip, whose firewall libraries take 0.3 ms to start: a sixth of a
// plugin's whole life. Types have the names that they have there, since errors of
// encoding/json hold them. That package is the judge: FuzzLoad and TestLoad hold this one to
// it, error texts included.
//
// Scope: loading, and what a range contains. Non-scope: allocating, and what the keys of
// our own mean, which are passed on as they stand.
package allocator
