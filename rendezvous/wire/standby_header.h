// SPDX-License-Identifier: Apache-2.0
// The header by which a standby of a rendezvous of several ddprunds says what it is.
#pragma once

namespace ddprun::membership {

// A standby answers the upgrade of /v1/agent, and each page but /healthz, /readyz, /metrics and
// /v1/status, with HTTP 503 and this header. Its value is where the leader is as far as the standby
// knows: HOST:PORT, an IPv6 address in brackets; empty: not known. Agents and ddprunctl then ask
// the next endpoint of their list. The value is for people, who may not be able to reach it by that
// name.
inline constexpr char kStandbyHeader[] = "ddprun-standby";

}  // namespace ddprun::membership
