// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/codec.h"

#include <algorithm>
#include <array>
#include <boost/json/monotonic_resource.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/membership/agent_message_json.h"
#include "rendezvous/membership/json_fields.h"
#include "rendezvous/membership/rendezvous_message_json.h"

namespace ddprun::membership {
namespace {

static_assert(kMaxTextBytes == JsonFields::kMaxTextBytes);

namespace json = boost::json;

constexpr std::size_t kMaxDepth = 8;
constexpr std::size_t kParsedBytes = 16'384;  // on the stack: what most messages become

template <typename Message>
std::string encode_envelope(const Envelope<Message>& envelope) {
  json::object out;
  out["type"] = type_of(envelope.message);
  out["seq"] = counter_value(envelope.seq);
  out["ack"] = counter_value(envelope.ack);
  put_message(out, envelope.message);
  return json::serialize(out);
}

template <typename Message>
Envelope<Message> decode_envelope(std::string_view input) {
  if (input.size() > kMaxMessageBytes) {
    throw Error(ErrorCode::kProtocol, concat("a control message of ", input.size(),
                                             " bytes; the limit is ", kMaxMessageBytes));
  }
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::error_code error;
  // Thousands of agents say hundreds of fields a second: no allocation for each of them.
  std::array<unsigned char, kParsedBytes> buffer;
  json::monotonic_resource memory(buffer.data(), buffer.size());
  const json::value value = json::parse(input, error, &memory, options);
  if (error) throw Error(ErrorCode::kProtocol, "not a control message: " + error.message());
  const auto* object = value.if_object();
  if (object == nullptr) throw Error(ErrorCode::kProtocol, "not a control message: no object");

  const std::string type = JsonFields(*object, "control message").text("type");
  const JsonFields in(*object, "message \"" + clean_utf8(type, 32) + "\"");
  Envelope<Message> envelope;
  envelope.seq = in.counter("seq");
  envelope.ack = in.counter("ack");
  if (!get_message(type, in, envelope.message)) {
    throw Error(ErrorCode::kProtocol,
                concat("control message of unknown type \"", clean_utf8(type, 32), "\""));
  }
  return envelope;
}

}  // namespace

std::optional<int> common_version(const Join& join) {
  return newest_in_both({join.oldest_version, join.version}, kProtocolVersions);
}

std::string encode(const AgentEnvelope& envelope) { return encode_envelope(envelope); }
std::string encode(const RendezvousEnvelope& envelope) { return encode_envelope(envelope); }

AgentEnvelope decode_agent_message(std::string_view input) {
  return decode_envelope<AgentMessage>(input);
}

RendezvousEnvelope decode_rendezvous_message(std::string_view input) {
  return decode_envelope<RendezvousMessage>(input);
}

}  // namespace ddprun::membership
