// SPDX-License-Identifier: Apache-2.0
// The pages of the queue: what is asked for and what is answered (docs/internals/nodes.md). Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/gangs/gang.h"
#include "rendezvous/gangs/gang_queue.h"

namespace ddprun::gangs {

inline constexpr char kGangsPath[] = "/v1/gangs";
inline constexpr std::size_t kMaxGangBytes = std::size_t{1} << 20;  // of a submission
inline constexpr std::size_t kMaxAskedNodes = 64;

// How far a reader has got in a node's output.
struct OutputPlace {
  std::string node;
  std::uint64_t out = 0, err = 0;
};

// The subject of a request.
struct GangTarget {
  std::string id;  // empty: all gangs
  bool is_logs = false;
  std::vector<OutputPlace> from;
  std::optional<std::uint64_t> seen;
  std::int64_t wait_ms = 0;
};

// kGangsPath itself, or what is below it; nullopt: it is no page of the queue.
std::optional<GangTarget> parse_gang_target(std::string_view target);
bool is_gangs_target(std::string_view target);
// The other way: of a page of output.
std::string logs_target(const std::string& id, const std::vector<OutputPlace>& from,
                        std::optional<std::uint64_t> seen, std::int64_t wait_ms);

// A submission. Throws Error(kInvalidArgument), one line.
GangSpec parse_gang(std::string_view body);
std::string gang_to_json(const GangSpec& spec);

struct NodeOutput {
  OutputPlace at;        // where it begins
  std::string out, err;  // base64
  std::uint64_t out_next = 0, err_next = 0;
  std::string reason;
};

// The line of a 404 that only the queue says.
std::string no_gang_text(std::string_view id);

std::string gang_page(const GangQueue& queue, const GangQueue::Gang& gang);
std::string gangs_page(const GangQueue& queue);
std::string logs_page(const GangQueue& queue, const GangQueue::Gang& gang,
                      const std::vector<NodeOutput>& output);

// ---- what a reader of these pages finds in them; throw Error(kProtocol) ----

struct GangNews {
  GangState state;
  std::size_t before = 0;  // queued gangs that came earlier
  std::uint64_t changes = 0;
  std::string waits_for;  // of one that is queued
  std::vector<NodeOutput> output;
};

GangNews parse_gang_page(std::string_view body);
std::vector<GangNews> parse_gangs_page(std::string_view body);

// ---- what a client looks at before it submits a gang ----

// SIGTERM → SIGKILL of a gang whose ddprun has this --shutdown-timeout: it has an end of its own.
std::int64_t stop_ms_of(std::chrono::milliseconds shutdown_timeout);

// The gang's variables are those of `variables` (NAME=VALUE) that are UTF-8 text. Returns a line
// for people for each other one, which stays here.
std::vector<std::string> take_environment(std::vector<std::string> variables, GangSpec& spec);

// Why a queue would not take it, one line; empty: it would. `keep_back`: how a variable is kept
// back, for people.
std::string check_submission(const GangSpec& spec, const std::string& keep_back);

}  // namespace ddprun::gangs
