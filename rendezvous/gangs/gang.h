// SPDX-License-Identifier: Apache-2.0
// A gang: one job that was submitted to the queue of a ddprund, whose nodes are standing agents and
// start together (docs/nodes.md). Plain data. Pure.
#pragma once

#include <boost/describe/class.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::gangs {

// Ranges of what anybody may say.
inline constexpr std::size_t kMaxNameBytes = 64;      // of gangs, users, nodes
inline constexpr std::size_t kMaxReasonBytes = 1024;  // for people
inline constexpr int kMaxNodes = 10'000;
inline constexpr int kMaxSlots = 65'536;
inline constexpr std::int64_t kMaxStopMs = 86'400'000;

// A gang as it was submitted: what runs.
struct GangSpec {
  std::string id;
  std::string user;
  std::int64_t uid = -1;
  std::string name;  // for people
  int min_nodes = 1;
  int max_nodes = 1;
  std::string workers = "1";  // --nproc-per-node
  int slots = 0;              // of each node; 0: as many as workers, or all where that is no number
  std::vector<std::string> arguments;    // of ddprun
  std::vector<std::string> environment;  // NAME=VALUE
  std::string directory;
  std::int64_t stop_ms = 40'000;  // SIGTERM → SIGKILL

  friend bool operator==(const GangSpec&, const GangSpec&) = default;
};

enum class GangPhase { kQueued, kRunning, kStopping, kEnded };
enum class PartPhase { kGiven, kRuns, kEnded, kLost };

constexpr GangPhase last_of(GangPhase) { return GangPhase::kEnded; }
constexpr PartPhase last_of(PartPhase) { return PartPhase::kLost; }

const char* to_string(GangPhase phase);
const char* to_string(PartPhase phase);

// A gang's part on one node.
struct GangPart {
  std::string node;
  int slots = 0;
  PartPhase phase = PartPhase::kGiven;
  int exit_code = 0;
  std::string reason;  // for people; empty: none

  bool is_over() const { return phase == PartPhase::kEnded || phase == PartPhase::kLost; }
};

inline constexpr int kNoExitCode = -1;  // of a gang of which no part has ended yet

// All of a gang that changes; its spec doesn't.
struct GangState {
  std::string id, user, name;  // as in its spec, which is erased at its end
  std::string owner;           // whose agents it is for (GangQueue)
  int min_nodes = 1, max_nodes = 1;
  std::string workers;
  int slots = 0;  // of each node; 0: all
  GangPhase phase = GangPhase::kQueued;
  std::string cancelled;  // who did, for people; empty: nobody
  int exit_code = kNoExitCode;
  std::string reason;  // for people: why it ended so; empty: nothing to tell
  // On the wall clock, ms since 1970; 0: not yet.
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

// Letters, digits, ".", "_", "-", not first a "." or "-"; 1 to kMaxNameBytes.
bool is_gang_name(std::string_view text);

// Slots that it takes of each node; 0: all of them.
int slots_of(const GangSpec& spec);

// One line that names a wrong field and says why; empty: all are right.
std::string check_spec(const GangSpec& spec);

// About what it takes to keep it.
std::size_t size_of(const GangSpec& spec);

}  // namespace ddprun::gangs
