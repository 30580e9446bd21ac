// SPDX-License-Identifier: Apache-2.0
// The header by which a ddprund says that it is a standby, if several serve one rendezvous.
#pragma once

namespace ddprun::membership {

// A standby answers the upgrade of /v1/agent, and each page but /healthz, /readyz, /metrics and
// /v1/status, with HTTP 503 and this header. Its value is the leader's HOST:PORT as far as the
// standby knows, an IPv6 address in brackets; empty: not known. Agents and ddprunctl then try the
// next endpoint of their list. The value is only for people: the leader may not be reachable by
// that name.
inline constexpr char kStandbyHeader[] = "ddprun-standby";

}  // namespace ddprun::membership
