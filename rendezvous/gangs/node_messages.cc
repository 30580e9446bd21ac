// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/gangs/node_messages.h"

#include <array>
#include <exception>
#include <type_traits>

#include "common/json.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "rendezvous/membership/row_fields.h"
#include "rendezvous/messages/codec.h"

namespace ddprun::gangs {
namespace {

static_assert(kMaxOutputBytes / 3 * 4 <= membership::kMaxTextBytes);

using membership::MaybeConst, membership::RowReader, membership::RowWriter;

template <MaybeConst<NodeHello> Self, typename Fields>
void each_field(Self& hello, Fields& fields) {
  fields("protocol", hello.protocols.newest);
  if constexpr (!std::is_const_v<Self>) hello.protocols.oldest = hello.protocols.newest;
  fields("oldest_protocol", hello.protocols.oldest);
  if (hello.protocols.oldest > hello.protocols.newest) {
    throw Error(ErrorCode::kProtocol, "\"oldest_protocol\" is larger than \"protocol\"");
  }
  if (!newest_in_both(hello.protocols, kNodeProtocols)) return;
  fields("version", hello.version);
  fields("instance", hello.instance);
  fields("node", hello.node);
  fields("user", hello.user);
  fields("uid", hello.uid);
  fields("slots", hello.slots);
  fields("gangs", hello.gangs);
}

// The types' names, in the order of the variants.
constexpr std::array<std::string_view, 4> kNodeTypes = {"hello", "started", "ended", "output"};
constexpr std::array<std::string_view, 6> kQueueTypes = {"welcome", "refused", "start",
                                                         "stop",    "forget",  "output"};

template <typename Message, std::size_t N>
std::string encode_as(const Message& message, const std::array<std::string_view, N>& types) {
  static_assert(N == variants::variant_size_v<Message>);
  RowWriter writer;
  writer("type", std::string(types[message.index()]));
  variants::visit([&writer](const auto& one) { each_field(one, writer); }, message);
  return writer.text();
}

template <typename Message, std::size_t I = 0, std::size_t N>
Message decode_as(const std::string& type, RowReader& reader,
                  const std::array<std::string_view, N>& types) {
  if constexpr (I < N) {
    if (type != types[I]) return decode_as<Message, I + 1>(type, reader, types);
    variants::variant_alternative_t<I, Message> one;
    each_field(one, reader);
    return one;
  }
  throw_error(ErrorCode::kProtocol, "there is no message \"", one_line(type), "\"");
}

template <typename Message, std::size_t N>
Message decode(std::string_view text, const std::array<std::string_view, N>& types) {
  try {
    RowReader reader(text, {});
    std::string type;
    reader("type", type);
    return decode_as<Message>(type, reader, types);
  } catch (const std::exception& error) {  // JSON errors, too
    throw_error(ErrorCode::kProtocol, "a message that makes no sense: ", json_trouble(error));
  }
}

}  // namespace

std::string encode(const NodeMessage& message) { return encode_as(message, kNodeTypes); }
std::string encode(const QueueMessage& message) { return encode_as(message, kQueueTypes); }

NodeMessage decode_node_message(std::string_view text) {
  return decode<NodeMessage>(text, kNodeTypes);
}

QueueMessage decode_queue_message(std::string_view text) {
  return decode<QueueMessage>(text, kQueueTypes);
}

}  // namespace ddprun::gangs
