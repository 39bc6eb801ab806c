// Package critest is a test room: a scripted CRI runtime that listens on a unix
// socket (Server), and the contract that it and every real runtime must pass
// (RunContract).
//
// Scope: the calls that the witness makes, and just enough of RunPodSandbox,
// StopPodSandbox and RemovePodSandbox for the contract. Non-scope: containers,
// images, networks: a scripted sandbox has the addresses and the netns path that the
// script gives it, and nothing behind them.
package critest
