// SPDX-License-Identifier: Apache-2.0
// The protocol of /v1/node, between a standing agent and ddprund: one JSON object in each text
// frame (docs/internals/nodes.md has the grammar). Pure.
#pragma once

#include <boost/describe/class.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/variant.h"
#include "common/version_range.h"
#include "rendezvous/gangs/gang.h"

namespace ddprun::gangs {

inline constexpr char kNodePath[] = "/v1/node";
inline constexpr VersionRange kNodeProtocols{1, 1};
// The limit of one stream in a message: in base64 it fits a string of a page
// (membership::kMaxTextBytes).
inline constexpr std::size_t kMaxOutputBytes = std::size_t{48} << 10;
inline constexpr std::int64_t kMaxOutputWaitMs = 5'000;
inline constexpr std::size_t kMaxGangsOfNode = 10'000;

// A part of a gang that runs on the node, or has ended there.
struct HeldPart {
  std::string gang;
  int slots = 0;
  bool ended = false;
  int exit_code = 0;
  std::string reason;
};

BOOST_DESCRIBE_STRUCT(HeldPart, (), (gang, slots, ended, exit_code, reason))

// ---- agent → ddprund ----

struct NodeHello {
  VersionRange protocols = kNodeProtocols;  // without a shared one nothing else is read
  std::string version, instance, node, user;
  std::int64_t uid = -1;
  int slots = 0;
  std::vector<HeldPart> gangs;
};
struct PartStarted {
  std::string gang;
};
BOOST_DESCRIBE_STRUCT(PartStarted, (), (gang))
struct PartEnded {
  std::string gang;
  int exit_code = 0;
  std::string reason;
};
BOOST_DESCRIBE_STRUCT(PartEnded, (), (gang, exit_code, reason))
struct OutputAnswer {
  std::uint64_t request = 0;
  std::string out, err;  // base64
  std::uint64_t out_next = 0, err_next = 0;
  std::string reason;  // why there is none; empty: there is, or may come
};
BOOST_DESCRIBE_STRUCT(OutputAnswer, (), (request, out, err, out_next, err_next, reason))
using NodeMessage = variants::variant<NodeHello, PartStarted, PartEnded, OutputAnswer>;

// ---- ddprund → agent ----

struct Welcome {
  int protocol = kNodeProtocols.oldest;  // the newest of both sides
  std::string version;
  std::int64_t silence_ms = 0;
};
BOOST_DESCRIBE_STRUCT(Welcome, (), (protocol, version, silence_ms))
struct NodeRefused {
  std::string reason;
  bool lasting = false;
};
BOOST_DESCRIBE_STRUCT(NodeRefused, (), (reason, lasting))
struct StartPart {
  std::string gang;
  int slots = 0;
  std::string nodes, workers;
  std::vector<std::string> arguments, environment;
  std::string directory;
  std::int64_t stop_ms = 0;
};
BOOST_DESCRIBE_STRUCT(StartPart, (),
                      (gang, slots, nodes, workers, arguments, environment, directory, stop_ms))
struct StopPart {
  std::string gang;
};
BOOST_DESCRIBE_STRUCT(StopPart, (), (gang))
struct ForgetPart {
  std::string gang;
};
BOOST_DESCRIBE_STRUCT(ForgetPart, (), (gang))
struct OutputRequest {
  std::uint64_t request = 0;
  std::string gang;
  std::uint64_t out = 0, err = 0;  // offsets
  std::uint64_t most = 0;
  std::int64_t wait_ms = 0;
};
BOOST_DESCRIBE_STRUCT(OutputRequest, (), (request, gang, out, err, most, wait_ms))
using QueueMessage =
    variants::variant<Welcome, NodeRefused, StartPart, StopPart, ForgetPart, OutputRequest>;

std::string encode(const NodeMessage& message);
std::string encode(const QueueMessage& message);
// Throw Error(kProtocol), which says what is wrong.
NodeMessage decode_node_message(std::string_view text);
QueueMessage decode_queue_message(std::string_view text);

}  // namespace ddprun::gangs
