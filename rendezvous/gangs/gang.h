// SPDX-License-Identifier: Apache-2.0
// A gang is a job that was submitted to the queue of a ddprund. Its nodes are standing agents,
// which start together (docs/nodes.md). Plain data. Pure.
#pragma once

#include <boost/describe/class.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/death_limits.h"

namespace ddprun::gangs {

// Limits of values in messages.
inline constexpr std::size_t kMaxNameBytes = 64;      // of gangs, users, nodes
inline constexpr std::size_t kMaxReasonBytes = 1024;  // for people
inline constexpr int kMaxNodes = 10'000;
inline constexpr int kMaxSlots = 65'536;
// With the longest --shutdown-timeout.
inline constexpr std::int64_t kMaxStopMs =
    std::chrono::milliseconds(std::chrono::hours(24) + kDdprunGoneMargin).count();

// A gang as it was submitted.
struct GangSpec {
  std::string id;
  std::string user;
  std::int64_t uid = -1;
  std::string name;  // for people
  int min_nodes = 1;
  int max_nodes = 1;
  std::string workers = "1";  // --nproc-per-node
  int slots = 0;              // per node; 0: as many as workers, or all if that is no number
  std::vector<std::string> arguments;    // ddprun's
  std::vector<std::string> environment;  // NAME=VALUE
  std::string directory;
  // From SIGTERM to SIGKILL.
  std::int64_t stop_ms =
      std::chrono::milliseconds(std::chrono::seconds(30) + kDdprunGoneMargin).count();

  friend bool operator==(const GangSpec&, const GangSpec&) = default;
};

enum class GangPhase { kQueued, kRunning, kStopping, kEnded };
enum class PartPhase { kGiven, kRuns, kEnded, kLost };

constexpr GangPhase last_of(GangPhase) { return GangPhase::kEnded; }
constexpr PartPhase last_of(PartPhase) { return PartPhase::kLost; }

const char* to_string(GangPhase phase);
const char* to_string(PartPhase phase);

// The part of a gang that runs on one node.
struct GangPart {
  std::string node;
  int slots = 0;
  PartPhase phase = PartPhase::kGiven;
  int exit_code = 0;
  std::string reason;  // for people; empty: none

  bool is_over() const { return phase == PartPhase::kEnded || phase == PartPhase::kLost; }
};

inline constexpr int kNoExitCode = -1;  // no part of the gang has ended yet

// The state of a gang. Its spec never changes.
struct GangState {
  std::string id, user, name;  // copied from the spec, which is erased at the end
  std::string owner;           // the owner of the agents that it uses (GangQueue)
  int min_nodes = 1, max_nodes = 1;
  std::string workers;
  int slots = 0;  // per node; 0: all
  GangPhase phase = GangPhase::kQueued;
  std::string cancelled;  // for people: by whom; empty: not cancelled
  int exit_code = kNoExitCode;
  std::string reason;  // for people: why it ended so; empty: none
  // Unix time in ms, by the wall clock; 0: not yet.
  std::int64_t submitted = 0, began = 0, over = 0;
  std::vector<GangPart> parts;
};

// For the journal and the pages (rendezvous/membership/row_fields.h).
BOOST_DESCRIBE_STRUCT(GangSpec, (),
                      (id, user, uid, name, min_nodes, max_nodes, workers, slots, arguments,
                       environment, directory, stop_ms))
BOOST_DESCRIBE_STRUCT(GangPart, (), (node, slots, phase, exit_code, reason))
BOOST_DESCRIBE_STRUCT(GangState, (),
                      (id, user, name, owner, min_nodes, max_nodes, workers, slots, phase,
                       cancelled, exit_code, reason, submitted, began, over, parts))

// Returns whether the text has only letters, digits, ".", "_" and "-", 1 to kMaxNameBytes in all,
// and doesn't begin with "." or "-".
bool is_gang_name(std::string_view text);

// Returns the slots that the gang takes of each node; 0: all of them.
int slots_of(const GangSpec& spec);

// Returns one line that names a wrong field and says why; empty: all are right.
std::string check_spec(const GangSpec& spec);

// Returns about how many bytes the spec takes in memory.
std::size_t size_of(const GangSpec& spec);

}  // namespace ddprun::gangs
