// SPDX-License-Identifier: Apache-2.0
// The pages of the queue: requests and answers (docs/internals/nodes.md). Pure.
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

// A reader's position in a node's output, in bytes.
struct OutputPlace {
  std::string node;
  std::uint64_t out = 0, err = 0;
};

// The parsed target of a request.
struct GangTarget {
  std::string id;  // empty: all gangs
  bool is_logs = false;
  std::vector<OutputPlace> from;
  std::optional<std::uint64_t> seen;
  std::int64_t wait_ms = 0;
};

// Parses kGangsPath itself or a path below it; nullopt: it is no page of the queue.
std::optional<GangTarget> parse_gang_target(std::string_view target);
bool is_gangs_target(std::string_view target);
// Makes the target of a page of output.
std::string logs_target(const std::string& id, const std::vector<OutputPlace>& from,
                        std::optional<std::uint64_t> seen, std::int64_t wait_ms);

// Parses a submission. Throws Error(kInvalidArgument), one line.
GangSpec parse_gang(std::string_view body);
std::string gang_to_json(const GangSpec& spec);

struct NodeOutput {
  OutputPlace at;        // where it begins
  std::string out, err;  // base64
  std::uint64_t out_next = 0, err_next = 0;
  std::string reason;
};

// Returns the text of the queue's own 404 answer.
std::string no_gang_text(std::string_view id);

std::string gang_page(const GangQueue& queue, const GangQueue::Gang& gang);
std::string gangs_page(const GangQueue& queue);
std::string logs_page(const GangQueue& queue, const GangQueue::Gang& gang,
                      const std::vector<NodeOutput>& output);

// ---- parsing of these pages; throws Error(kProtocol) ----

struct GangNews {
  GangState state;
  std::size_t before = 0;  // number of queued gangs that came earlier
  std::uint64_t changes = 0;
  std::string waits_for;  // why it waits, if queued
  std::vector<NodeOutput> output;
};

GangNews parse_gang_page(std::string_view body);
std::vector<GangNews> parse_gangs_page(std::string_view body);

// ---- a client's steps before it submits a gang ----

// Returns the time from SIGTERM to SIGKILL for a gang whose ddprun has this --shutdown-timeout.
// ddprun's own end needs some more time.
std::int64_t stop_ms_of(std::chrono::milliseconds shutdown_timeout);

// Adds the `variables` (NAME=VALUE) that are UTF-8 text to the gang's environment. Returns a line
// for people for each other one, which is left out.
std::vector<std::string> take_environment(std::vector<std::string> variables, GangSpec& spec);

// Returns why a queue would refuse the gang, one line; empty: it would take it. `keep_back` tells
// people how to leave a variable out.
std::string check_submission(const GangSpec& spec, const std::string& keep_back);

}  // namespace ddprun::gangs
