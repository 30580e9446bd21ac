// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/channel_codec.h"

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "common/check.h"
#include "common/error.h"

namespace ddprun::launcher::channel {
namespace {

// A header is the type and the payload's length.
constexpr std::size_t kHeaderBytes = 5;
constexpr std::size_t kKeptPrologueBytes = 4096;
// kTypes is in the order of Message's alternatives. A launcher and an agent send those of their own
// lists.
constexpr std::string_view kTypes = "PHSOREJKI";
constexpr std::string_view kLaunchersTypes = "PJKI";
constexpr std::string_view kAgentsTypes = "PHSORE";

// Each message's fields, in the order in which they are written.
template <typename Self, typename T>
concept Like = std::same_as<std::remove_const_t<Self>, T>;

void each_field(Like<Pulse> auto& m, auto& fields) { fields(m.patience); }
void each_field(Like<Hello> auto& m, auto& fields) {
  fields(m.protocol, m.version, m.host, m.reached_at, m.came_from);
}
void each_field(Like<Serving> auto& m, auto& fields) { fields(m.endpoint); }
void each_field(Like<Output> auto& m, auto& fields) {
  fields(m.is_stderr);
  fields.rest(m.bytes);
}
void each_field(Like<Room> auto& m, auto& fields) { fields(m.num_bytes, m.has_stdin_rank); }
void each_field(Like<End> auto& m, auto& fields) {
  fields(m.exit_code, m.was_killed, m.by_job);
  fields.rest(m.last_words);
}
void each_field(Like<Job> auto& m, auto& fields) {
  fields(m.serve_at, m.directory, m.stop_signal, m.stop_time, m.arguments, m.environment);
}
void each_field(Like<Signal> auto& m, auto& fields) { fields(m.number); }
void each_field(Like<Input> auto& m, auto& fields) { fields.rest(m.bytes); }

[[noreturn]] void broken(const std::string& what) {
  throw Error(ErrorCode::kProtocol, "broken message: " + what);
}

std::size_t most_payload_bytes(char type) {
  return type == 'J' ? kMostJobBytes : kMostPayloadBytes;
}

void put_number(std::string& out, std::size_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
}

// Precondition: there are 4 bytes.
std::size_t get_number(std::string_view bytes) {
  std::size_t number = 0;
  for (int i = 0; i < 4; ++i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

class FieldWriter {
 public:
  template <typename... Fields>
  void operator()(const Fields&... fields) {
    (put(fields), ...);
  }
  void rest(const std::string& bytes) { payload_ += bytes; }

  std::string message(char type) const {
    DDPRUN_CHECK(payload_.size() <= most_payload_bytes(type));
    std::string out(1, type);
    put_number(out, payload_.size());
    return out + payload_;
  }

 private:
  template <std::integral Number>
  void put(Number number) {
    put_number(payload_, static_cast<std::size_t>(number));
  }
  template <typename Rep, typename Period>
  void put(std::chrono::duration<Rep, Period> time) {
    put(time.count());
  }
  void put(const std::string& text) {
    put(text.size());
    payload_ += text;
  }
  void put(const std::vector<std::string>& texts) {
    put(texts.size());
    for (const std::string& text : texts) put(text);
  }

  std::string payload_;
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view payload) : rest_(payload) {}

  template <typename... Fields>
  void operator()(Fields&... fields) {
    (get(fields), ...);
  }
  void rest(std::string& bytes) { bytes = std::exchange(rest_, {}); }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view take(std::size_t num_bytes) {
    if (num_bytes > rest_.size()) broken("a field is missing");
    const std::string_view bytes = rest_.substr(0, num_bytes);
    rest_.remove_prefix(num_bytes);
    return bytes;
  }
  std::size_t number(std::size_t most) {
    const std::size_t value = get_number(take(4));
    if (value > most) broken("a number is out of range");
    return value;
  }
  void get(std::size_t& field) { field = number(UINT32_MAX); }
  void get(int& field) { field = static_cast<int>(number(UINT8_MAX)); }
  void get(bool& flag) { flag = number(1) == 1; }
  template <typename Rep, typename Period>
  void get(std::chrono::duration<Rep, Period>& time) {
    time = std::chrono::duration<Rep, Period>(number(UINT32_MAX));
  }
  // Refuses zero bytes, since the text is for exec, chdir and the like.
  void get(std::string& text) {
    text = take(number(kMostJobBytes));
    if (text.find('\0') != std::string::npos) broken("a text has a zero byte");
  }
  void get(std::vector<std::string>& texts) {
    for (std::size_t left = number(kMostJobBytes); left > 0; --left) get(texts.emplace_back());
  }

  std::string_view rest_;
};

template <typename T>
T decode(std::string_view payload) {
  T message;
  FieldReader in(payload);
  each_field(message, in);
  if constexpr (std::same_as<T, Hello>) {
    if (message.protocol != kProtocol) return message;  // a later version may have more fields
  }
  if (!in.at_end()) broken("more than was expected");
  return message;
}

template <typename... Messages>
Message decode_any(std::size_t index, std::string_view payload,
                   const variants::variant<Messages...>& /*all*/) {
  using Decode = Message (*)(std::string_view);
  constexpr Decode kDecoders[] = {
      [](std::string_view bytes) -> Message { return decode<Messages>(bytes); }...};
  return kDecoders[index](payload);
}

}  // namespace

std::string encode(const Message& message) {
  FieldWriter out;
  variants::visit([&](const auto& one) { each_field(one, out); }, message);
  const bool is_hello = variants::holds_alternative<Hello>(message);
  return std::string(is_hello ? kMagic : "") + out.message(kTypes[message.index()]);
}

bool Decoder::skip_prologue() {
  if (is_open_) return true;
  const std::size_t at = buffer_.find(kMagic);
  // The buffer may end with a part of the magic.
  const std::size_t size =
      at != std::string::npos ? at : buffer_.size() - std::min(buffer_.size(), kMagic.size() - 1);
  prologue_.append(buffer_, 0, size);
  if (prologue_.size() > kKeptPrologueBytes) {
    prologue_.erase(0, prologue_.size() - kKeptPrologueBytes);
  }
  num_skipped_ += size;
  buffer_.erase(0, at == std::string::npos ? size : size + kMagic.size());
  if (num_skipped_ > kMostPrologueBytes) broken("the other side is no ddprun");
  is_open_ = at != std::string::npos;
  return is_open_;
}

std::optional<Message> Decoder::next() {
  if (!skip_prologue()) return std::nullopt;
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  if (rest.empty()) return std::nullopt;
  const char type = rest.front();
  const auto types = from_ == From::kLauncher ? kLaunchersTypes : kAgentsTypes;
  if (types.find(type) == std::string_view::npos) broken("of a type that doesn't exist");
  if (rest.size() < kHeaderBytes) return std::nullopt;
  const std::size_t size = get_number(rest.substr(1));
  if (size > most_payload_bytes(type)) broken("a length of " + std::to_string(size));
  if (rest.size() < kHeaderBytes + size) return std::nullopt;
  Message message = decode_any(kTypes.find(type), rest.substr(kHeaderBytes, size), Message());
  begin_ += kHeaderBytes + size;
  // Bytes that were read are removed only when they fill half of the buffer.
  if (begin_ >= buffer_.size() / 2) buffer_.erase(0, std::exchange(begin_, 0));
  return message;
}

}  // namespace ddprun::launcher::channel
