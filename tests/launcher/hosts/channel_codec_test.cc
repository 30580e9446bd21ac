// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/channel_codec.h"

#include "common/error.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher::channel;

namespace {

std::string framed(char type, const std::string& payload) {
  std::string out(1, type);
  for (int shift = 24; shift >= 0; shift -= 8) {
    out += static_cast<char>(payload.size() >> shift & 0xff);
  }
  return out + payload;
}

bool is_refused(const std::string& bytes, bool from_agent) {
  Decoder decoder(false);
  decoder.feed(bytes);
  try {
    from_agent ? (void)decoder.next_from_agent() : (void)decoder.next_from_launcher();
  } catch (const Error& error) {
    return error.code() == ErrorCode::kProtocol;
  }
  return false;
}

}  // namespace

TEST_CASE("channel: what an agent says arrives as it was, however the bytes come") {
  const std::string bytes =
      "Welcome to n1!\n" + std::string(kMagic) + encode(Hello{"1", "0.1", "n1", "10.0.0.1", ""}) +
      encode(Serving{"10.0.0.1:4711"}) + encode(Output{true, std::string("\0x\n", 3)}) +
      encode(Output{false, std::string(kMostOutputBytes, 'y')}) +
      encode(Room{kMostInputBytes, true}) +
      encode(FromAgent(Pulse{std::chrono::milliseconds(200)})) +
      encode(End{143, true, true, "a\nb"});
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}, bytes.size()}) {
    Decoder decoder(true);
    std::vector<FromAgent> heard;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      decoder.feed(std::string_view(bytes).substr(at, step));
      while (auto message = decoder.next_from_agent()) heard.push_back(std::move(*message));
    }
    REQUIRE(heard.size() == 7);
    CHECK(variants::get<Hello>(heard[0]).reached_at == "10.0.0.1");
    CHECK(variants::get<Serving>(heard[1]).endpoint == "10.0.0.1:4711");
    CHECK(variants::get<Output>(heard[2]).bytes == std::string("\0x\n", 3));
    CHECK(variants::get<Output>(heard[2]).is_stderr);
    CHECK(variants::get<Output>(heard[3]).bytes.size() == kMostOutputBytes);
    CHECK(variants::get<Pulse>(heard[5]).patience == std::chrono::milliseconds(200));
    const Room& room = variants::get<Room>(heard[4]);
    CHECK((room.num_bytes == kMostInputBytes && room.has_rank_0));
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
  job.stop_seconds = 40;
  job.arguments = {"", "a b", "'\"$(x)`\\\n", "\xff\xfe"};
  job.environment = {"A=1", "B=\n=\n"};
  Decoder decoder(false);
  decoder.feed(encode(job) + encode(Signal{15}) + encode(FromLauncher(Pulse{kMostPatience})) +
               encode(Input{std::string("\0\n", 2)}) + encode(Input{}));
  const auto heard = decoder.next_from_launcher();
  REQUIRE(heard.has_value());
  const Job& same = variants::get<Job>(*heard);
  CHECK(same.arguments == job.arguments);
  CHECK(same.environment == job.environment);
  CHECK((same.serve_at == "::1" && same.directory == "/a b" && same.stop_signal == 2 &&
         same.stop_seconds == 40));
  CHECK(variants::get<Signal>(*decoder.next_from_launcher()).number == 15);
  CHECK(variants::get<Pulse>(*decoder.next_from_launcher()).patience == kMostPatience);
  CHECK(variants::get<Input>(*decoder.next_from_launcher()).bytes == std::string("\0\n", 2));
  CHECK(variants::get<Input>(*decoder.next_from_launcher()).bytes.empty());
  CHECK_FALSE(decoder.next_from_launcher().has_value());
}

TEST_CASE("channel: what is no message, or out of its bounds, is refused") {
  CHECK(is_refused("?", true));
  CHECK(is_refused("?", false));
  CHECK(is_refused(encode(Signal{2}), true));
  CHECK(is_refused(encode(Serving{"a:1"}), false));
  CHECK(is_refused(std::string("o\xff\xff\xff\xff", 5), true));  // too long
  CHECK(is_refused(framed('S', std::string("\0\0\0\xff"
                                           "a",
                                           5)),
                   true));                                             // text too long
  CHECK(is_refused(framed('S', std::string("\0\0\0\1a!", 6)), true));  // more than it
  CHECK(is_refused(framed('S', std::string("\0\0\0\1\0", 5)), true));  // a zero byte
  CHECK(is_refused(framed('S', ""), true));                            // nothing
  CHECK(is_refused(framed('K', std::string("\0\0\0\2"
                                           "99",
                                           6)),
                   false));  // no signal
  CHECK(is_refused(framed('K', std::string("\0\0\0\1x", 5)), false));
  CHECK(is_refused(std::string("i\0\1\0\1", 5), false));  // longer than 64 KiB
  CHECK(is_refused(framed('R', std::string("\0\0\0\6"
                                           "262145\0\0\0\1"
                                           "0",
                                           15)),
                   true));  // more room than an agent has
  CHECK(is_refused(framed('R', std::string("\0\0\0\1"
                                           "1",
                                           5)),
                   true));
  CHECK(is_refused(encode(Input{"x"}), true));
  CHECK(is_refused(encode(Room{1, false}), false));
  for (const bool from_agent : {true, false}) {
    CHECK(is_refused(framed('P', ""), from_agent));
    CHECK(is_refused(framed('P', std::string("\0\0\0\2-1", 6)), from_agent));
    CHECK(is_refused(framed('P', std::string("\0\0\0\10"
                                             "86400001",
                                             12)),
                     from_agent));  // more than a day
    CHECK(is_refused(framed('P', std::string("\0\0\0\1"
                                             "0!",
                                             6)),
                     from_agent));
  }
  CHECK(is_refused(framed('E', std::string("\0\0\0\3"
                                           "256",
                                           7)),
                   true));
}

TEST_CASE("channel: a login shell that goes on for ever is no agent") {
  Decoder decoder(true);
  const std::string noise(1 << 16, 'x');
  CHECK_THROWS_AS(
      [&] {
        for (int i = 0; i < 100; ++i) {
          decoder.feed(noise);
          decoder.next_from_agent();
        }
      }(),
      Error);
  CHECK(decoder.prologue().size() < 4096 + kMagic.size());
}

TEST_CASE("channel: a later protocol's greeting can be read") {
  const std::string later = framed('H', std::string("\0\0\0\1"
                                                    "9\0\0\0\3"
                                                    "2.0\0\0\0\1h\0\0\0\0\0\0\0\0more",
                                                    30));
  Decoder decoder(false);
  decoder.feed(later);
  const auto heard = decoder.next_from_agent();
  REQUIRE(heard.has_value());
  CHECK(variants::get<Hello>(*heard).protocol == "9");
  CHECK(variants::get<Hello>(*heard).version == "2.0");
}
