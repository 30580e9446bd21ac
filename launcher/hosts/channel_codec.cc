// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/channel_codec.h"

#include <charconv>
#include <cstring>

#include "common/check.h"
#include "common/error.h"

namespace ddprun::launcher::channel {
namespace {

// Frame: type, length of the payload (big endian), payload.
constexpr std::size_t kHeaderBytes = 5;
constexpr std::size_t kMostNameBytes = 1024;
constexpr std::size_t kMostStrings = 1 << 20;
constexpr std::size_t kKeptPrologueBytes = 4096;
constexpr int kMostSignal = 64;
constexpr int kMostSeconds = 86'400'000;

enum Type : char {
  kHello = 'H',
  kServing = 'S',
  kStdout = 'o',
  kStderr = 'e',
  kEnd = 'E',
  kJob = 'J',
  kSignal = 'K',
  kPulse = 'P',
  kRoom = 'R',
  kInput = 'i',
};

[[noreturn]] void broken(const std::string& what) {
  throw Error(ErrorCode::kProtocol, "broken message: " + what);
}

std::size_t most_payload_bytes(char type) {
  switch (type) {
    case kHello:
      return 8 * kMostNameBytes;
    case kServing:
    case kSignal:
    case kPulse:
    case kRoom:
      return kMostNameBytes;
    case kStdout:
    case kStderr:
    case kInput:
      return kMostOutputBytes;
    case kEnd:
      return kMostTextBytes + kMostNameBytes;
    case kJob:
      return kMostJobBytes;
    default:
      broken("unknown type " + std::to_string(static_cast<unsigned char>(type)));
  }
}

void put_size(std::string& out, std::size_t size) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(size >> shift & 0xff);
}

std::size_t get_size(std::string_view bytes) {
  std::size_t size = 0;
  for (int i = 0; i < 4; ++i) size = size << 8 | static_cast<unsigned char>(bytes[i]);
  return size;
}

class Writer {
 public:
  Writer& text(std::string_view value) {
    put_size(payload_, value.size());
    payload_ += value;
    return *this;
  }
  Writer& number(long long value) { return text(std::to_string(value)); }
  Writer& list(const std::vector<std::string>& values) {
    number(static_cast<long long>(values.size()));
    for (const std::string& value : values) text(value);
    return *this;
  }
  std::string frame(char type) const { return framed(type, payload_); }

  static std::string framed(char type, std::string_view payload) {
    DDPRUN_CHECK(payload.size() <= most_payload_bytes(type));
    std::string out(1, type);
    put_size(out, payload.size());
    return out.append(payload);
  }

 private:
  std::string payload_;
};

class Reader {
 public:
  explicit Reader(std::string_view payload) : rest_(payload) {}

  std::string text(std::size_t most_bytes, const char* what) {
    if (rest_.size() < 4) broken(std::string(what) + " is missing");
    const std::size_t size = get_size(rest_);
    rest_.remove_prefix(4);
    if (size > most_bytes || size > rest_.size()) broken(std::string(what) + " is too long");
    std::string value(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return value;
  }
  // Without zero bytes: for exec, chdir and the like.
  std::string c_text(std::size_t most_bytes, const char* what) {
    std::string value = text(most_bytes, what);
    if (value.find('\0') != std::string::npos) broken(std::string(what) + " has a zero byte");
    return value;
  }
  int number(int least, int most, const char* what) {
    const std::string digits = text(16, what);
    int value = 0;
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value);
    if (error != std::errc() || stop != end || value < least || value > most) {
      broken(std::string(what) + " is out of range");
    }
    return value;
  }
  std::vector<std::string> list(const char* what) {
    std::vector<std::string> values;
    const int count = number(0, kMostStrings, what);
    for (int i = 0; i < count; ++i) values.push_back(c_text(kMostJobBytes, what));
    return values;
  }
  Pulse pulse() {
    constexpr auto kMost = std::chrono::milliseconds(kMostPatience).count();
    const Pulse pulse{std::chrono::milliseconds(number(0, kMost, "patience"))};
    end();
    return pulse;
  }
  void end() const {
    if (!rest_.empty()) broken("more than was expected");
  }

 private:
  std::string_view rest_;
};

std::string encode_one(const Pulse& pulse) {
  return Writer().number(pulse.patience.count()).frame(kPulse);
}
std::string encode_one(const Hello& hello) {
  return Writer()
      .text(hello.protocol)
      .text(hello.version)
      .text(hello.host)
      .text(hello.reached_at)
      .text(hello.came_from)
      .frame(kHello);
}
std::string encode_one(const Serving& serving) {
  return Writer().text(serving.endpoint).frame(kServing);
}
std::string encode_one(const Output& output) {
  return Writer::framed(output.is_stderr ? kStderr : kStdout, output.bytes);
}
std::string encode_one(const Room& room) {
  return Writer()
      .number(static_cast<long long>(room.num_bytes))
      .number(room.has_rank_0 ? 1 : 0)
      .frame(kRoom);
}
std::string encode_one(const Input& input) { return Writer::framed(kInput, input.bytes); }
std::string encode_one(const End& end) {
  return Writer()
      .number(end.exit_code)
      .number(end.was_killed ? 1 : 0)
      .number(end.by_job ? 1 : 0)
      .text(end.last_words)
      .frame(kEnd);
}
std::string encode_one(const Job& job) {
  return Writer()
      .text(job.serve_at)
      .text(job.directory)
      .number(job.stop_signal)
      .number(job.stop_seconds)
      .list(job.arguments)
      .list(job.environment)
      .frame(kJob);
}
std::string encode_one(const Signal& signal) {
  return Writer().number(signal.number).frame(kSignal);
}

}  // namespace

std::string encode(const FromAgent& message) {
  return variants::visit([](const auto& one) { return encode_one(one); }, message);
}

std::string encode(const FromLauncher& message) {
  return variants::visit([](const auto& one) { return encode_one(one); }, message);
}

bool Decoder::skip_prologue() {
  if (is_open_) return true;
  const std::size_t at = buffer_.find(kMagic);
  // The magic may be there in part.
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

std::optional<std::string_view> Decoder::frame(char& type) {
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  if (rest.empty()) return std::nullopt;
  const std::size_t most = most_payload_bytes(rest.front());
  if (rest.size() < kHeaderBytes) return std::nullopt;
  const std::size_t size = get_size(rest.substr(1));
  if (size > most) broken("a length of " + std::to_string(size));
  if (rest.size() < kHeaderBytes + size) return std::nullopt;
  type = rest.front();
  frame_bytes_ = kHeaderBytes + size;
  return rest.substr(kHeaderBytes, size);
}

// The buffer moves only when half of it is done with.
void Decoder::drop_frame() {
  begin_ += frame_bytes_;
  if (begin_ < buffer_.size() / 2) return;
  buffer_.erase(0, begin_);
  begin_ = 0;
}

std::optional<FromAgent> Decoder::next_from_agent() {
  if (!skip_prologue()) return std::nullopt;
  char type = 0;
  const auto payload = frame(type);
  if (!payload) return std::nullopt;
  Reader in(*payload);
  FromAgent message;
  if (type == kHello) {
    Hello hello;
    hello.protocol = in.c_text(kMostNameBytes, "protocol");
    hello.version = in.c_text(kMostNameBytes, "version");
    hello.host = in.c_text(kMostNameBytes, "host");
    hello.reached_at = in.c_text(kMostNameBytes, "address");
    hello.came_from = in.c_text(kMostNameBytes, "address");
    // A later protocol may say more.
    if (hello.protocol == kProtocol) in.end();
    message = std::move(hello);
  } else if (type == kServing) {
    message = Serving{in.c_text(kMostNameBytes, "endpoint")};
    in.end();
  } else if (type == kStdout || type == kStderr) {
    message = Output{type == kStderr, std::string(*payload)};
  } else if (type == kRoom) {
    Room room;
    room.num_bytes = static_cast<std::size_t>(in.number(0, kMostInputBytes, "room"));
    room.has_rank_0 = in.number(0, 1, "rank 0") == 1;
    in.end();
    message = room;
  } else if (type == kEnd) {
    End end;
    end.exit_code = in.number(0, 255, "exit code");
    end.was_killed = in.number(0, 1, "end") == 1;
    end.by_job = in.number(0, 1, "end") == 1;
    end.last_words = in.text(kMostTextBytes, "report");
    in.end();
    message = std::move(end);
  } else if (type == kPulse) {
    message = in.pulse();
  } else {
    broken("not an agent's");
  }
  drop_frame();
  return message;
}

std::optional<FromLauncher> Decoder::next_from_launcher() {
  if (!skip_prologue()) return std::nullopt;
  char type = 0;
  const auto payload = frame(type);
  if (!payload) return std::nullopt;
  Reader in(*payload);
  FromLauncher message;
  if (type == kJob) {
    Job job;
    job.serve_at = in.c_text(kMostNameBytes, "host");
    job.directory = in.c_text(kMostNameBytes * 4, "directory");
    job.stop_signal = in.number(1, kMostSignal, "signal");
    job.stop_seconds = in.number(0, kMostSeconds, "time");
    job.arguments = in.list("arguments");
    job.environment = in.list("environment");
    in.end();
    message = std::move(job);
  } else if (type == kSignal) {
    message = Signal{in.number(1, kMostSignal, "signal")};
    in.end();
  } else if (type == kInput) {
    message = Input{std::string(*payload)};
  } else if (type == kPulse) {
    message = in.pulse();
  } else {
    broken("not a launcher's");
  }
  drop_frame();
  return message;
}

}  // namespace ddprun::launcher::channel
