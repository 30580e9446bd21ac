// SPDX-License-Identifier: Apache-2.0
// The rows of a journal that say who leads and who mirrors whom: each side's own (docs/ha-mirror.md
// has the list). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/ha/pair_state.h"

namespace ddprun::ha {

inline constexpr char kLeaderRows[] = "leader/";  // begins the name of each of them
inline constexpr char kTermRow[] = "leader/term";
inline constexpr char kStandbyRow[] = "leader/standby";
inline constexpr char kSyncedRow[] = "leader/synced";
inline constexpr char kBeforeRow[] = "leader/before";

// Of whose rows a standby has all that anybody was told of.
struct SyncedWith {
  TermId term;
  std::string leader;  // its name, for people

  friend bool operator==(const SyncedWith&, const SyncedWith&) = default;
};

inline bool is_leader_row(std::string_view key) { return key.starts_with(kLeaderRows); }

std::string encode_standby_row(std::string_view name);
std::optional<std::string> decode_standby_row(std::string_view content);  // nullopt: it is none
std::string encode_synced_row(const SyncedWith& synced);
std::optional<SyncedWith> decode_synced_row(std::string_view content);  // likewise

bool is_term_id(std::string_view id);

}  // namespace ddprun::ha
