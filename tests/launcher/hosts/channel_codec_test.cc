// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/channel_codec.h"

#include "common/error.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher::channel;

namespace {

std::string number(std::size_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
  return out;
}

std::string text(const std::string& value) { return number(value.size()) + value; }

std::string framed(char type, const std::string& payload) {
  return std::string(1, type) + text(payload);
}

bool is_refused(const std::string& bytes, From from) {
  Decoder decoder(from);
  if (from == From::kAgent) decoder.feed(kMagic);
  decoder.feed(bytes);
  try {
    decoder.next();
  } catch (const Error& error) {
    return error.code() == ErrorCode::kProtocol;
  }
  return false;
}

}  // namespace

TEST_CASE("channel: an agent's messages arrive whole, however the bytes come") {
  const std::string bytes =
      "Welcome to n1!\n" + encode(Hello{"1", "0.1", "n1", "10.0.0.1", ""}) +
      encode(Serving{"10.0.0.1:4711"}) + encode(Output{true, std::string("\0x\n", 3)}) +
      encode(Output{false, std::string(kMostOutputBytes, 'y')}) +
      encode(Room{kMostInputBytes, true}) + encode(Pulse{std::chrono::milliseconds(200)}) +
      encode(End{143, true, true, "a\nb"});
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}, bytes.size()}) {
    Decoder decoder(From::kAgent);
    std::vector<Message> heard;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      decoder.feed(std::string_view(bytes).substr(at, step));
      while (auto message = decoder.next()) heard.push_back(std::move(*message));
    }
    REQUIRE(heard.size() == 7);
    CHECK(variants::get<Hello>(heard[0]).reached_at == "10.0.0.1");
    CHECK(variants::get<Serving>(heard[1]).endpoint == "10.0.0.1:4711");
    CHECK(variants::get<Output>(heard[2]).bytes == std::string("\0x\n", 3));
    CHECK(variants::get<Output>(heard[2]).is_stderr);
    CHECK(variants::get<Output>(heard[3]).bytes.size() == kMostOutputBytes);
    CHECK(variants::get<Pulse>(heard[5]).patience == std::chrono::milliseconds(200));
    const Room& room = variants::get<Room>(heard[4]);
    CHECK((room.num_bytes == kMostInputBytes && room.has_stdin_rank));
    const End& end = variants::get<End>(heard[6]);
    CHECK((end.exit_code == 143 && end.was_killed && end.by_job && end.last_words == "a\nb"));
    CHECK(decoder.prologue() == "Welcome to n1!\n");
  }
}

TEST_CASE("channel: arguments and variables survive every byte but zero") {
  Job job;
  job.serve_at = "::1";
  job.directory = "/a b";
  job.stop_signal = 2;
  job.stop_time = std::chrono::seconds(86'400'000);
  job.arguments = {"", "a b", "'\"$(x)`\\\n", "\xff\xfe"};
  job.environment = {"A=1", "B=\n=\n"};
  Decoder decoder(From::kLauncher);
  const std::chrono::hours day{24};
  decoder.feed(encode(job) + encode(Signal{15}) + encode(Pulse{day}) +
               encode(Input{std::string("\0\n", 2)}) + encode(Input{}));
  const auto heard = decoder.next();
  REQUIRE(heard.has_value());
  const Job& same = variants::get<Job>(*heard);
  CHECK(same.arguments == job.arguments);
  CHECK(same.environment == job.environment);
  CHECK((same.serve_at == "::1" && same.directory == "/a b" && same.stop_signal == 2 &&
         same.stop_time == job.stop_time));
  CHECK(variants::get<Signal>(*decoder.next()).number == 15);
  CHECK(variants::get<Pulse>(*decoder.next()).patience == day);
  CHECK(variants::get<Input>(*decoder.next()).bytes == std::string("\0\n", 2));
  CHECK(variants::get<Input>(*decoder.next()).bytes.empty());
  CHECK_FALSE(decoder.next().has_value());
}

TEST_CASE("channel: a message that is malformed, too long or the other side's is refused") {
  for (const From from : {From::kAgent, From::kLauncher}) {
    CHECK(is_refused("?", from));
    CHECK(is_refused(framed('P', ""), from));
    CHECK(is_refused(framed('P', number(0) + "!"), from));  // a byte too many
    CHECK_FALSE(is_refused(framed('P', number(0)), from));
  }
  // These messages are the other side's.
  CHECK(is_refused(encode(Signal{2}), From::kAgent));
  CHECK(is_refused(encode(Input{"x"}), From::kAgent));
  CHECK(is_refused(encode(Job{}), From::kAgent));
  CHECK(is_refused(encode(Serving{"a:1"}), From::kLauncher));
  CHECK(is_refused(encode(Room{1, false}), From::kLauncher));
  // This message is too long.
  CHECK(is_refused("O" + number(0xffffffff), From::kAgent));
  CHECK(is_refused("I" + number(kMostPayloadBytes + 1), From::kLauncher));
  CHECK(is_refused("J" + number(kMostJobBytes + 1), From::kLauncher));
  CHECK(is_refused(framed('S', number(255) + "a"), From::kAgent));
  CHECK(is_refused(framed('S', text("a") + "!"), From::kAgent));  // a byte too many
  // A text with a zero byte.
  CHECK(is_refused(framed('S', text(std::string(1, '\0'))), From::kAgent));
  CHECK(is_refused(framed('S', ""), From::kAgent));                     // no content
  CHECK(is_refused(framed('K', number(256)), From::kLauncher));         // the number is no byte
  CHECK(is_refused(framed('R', number(1)), From::kAgent));              // half of the content
  CHECK(is_refused(framed('R', number(1) + number(2)), From::kAgent));  // the number is no bool
  CHECK(is_refused(framed('E', number(256) + number(0) + number(0)), From::kAgent));
  // A list that has fewer elements than its length.
  const std::string job = text("") + text("/") + number(15) + number(9);
  CHECK_FALSE(is_refused(framed('J', job + number(0) + number(0)), From::kLauncher));
  CHECK(is_refused(framed('J', job + number(1) + text("a") + number(8000)), From::kLauncher));
}

TEST_CASE("channel: a login shell that goes on for ever is no agent") {
  Decoder decoder(From::kAgent);
  const std::string noise(1 << 16, 'x');
  CHECK_THROWS_AS(
      [&] {
        for (int i = 0; i < 100; ++i) {
          decoder.feed(noise);
          decoder.next();
        }
      }(),
      Error);
  CHECK(decoder.prologue().size() < 4096 + kMagic.size());
}

TEST_CASE("channel: a later protocol's greeting can be read") {
  const std::string later =
      framed('H', text("9") + text("2.0") + text("h") + text("") + text("") + "more");
  Decoder decoder(From::kAgent);
  decoder.feed(std::string(kMagic) + later);
  const auto heard = decoder.next();
  REQUIRE(heard.has_value());
  CHECK(variants::get<Hello>(*heard).protocol == "9");
  CHECK(variants::get<Hello>(*heard).version == "2.0");
}
