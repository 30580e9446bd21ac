// SPDX-License-Identifier: Apache-2.0
// Whether a lease is over, asked of ddprun-warden itself.
#include <poll.h>

#include <chrono>

#include "tests/agent/warden/raw_warden.h"

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using warden::ReportType;

TEST_CASE("warden: the newest lease counts after a standstill, not the first that is read",
          "[proc]") {
  RawWarden warden;
  warden.start_sleep();
  warden.lease(seconds{60});
  warden.stop();
  // Each of these leases is over.
  for (int i = 0; i < 5; ++i) warden.lease(milliseconds{-1000 + i});
  warden.lease(seconds{60});
  warden.go_on();
  CHECK_FALSE(warden.hears(ReportType::kFenced, milliseconds{300}));
  warden.lease(milliseconds{0});
  CHECK(warden.hears(ReportType::kFenced));
  CHECK(warden.hears(ReportType::kExited));
}

TEST_CASE("warden: a renewal that came while it stood still saves the lease that ended meanwhile",
          "[proc]") {
  RawWarden warden;
  warden.start_sleep();
  warden.lease(milliseconds{100});
  warden.stop();
  warden.lease(seconds{60});
  ::poll(nullptr, 0, 150);  // waits for the lease's end, of which no event tells
  warden.go_on();
  CHECK_FALSE(warden.hears(ReportType::kFenced, milliseconds{300}));
}

TEST_CASE("warden: a lease that nobody renews is over, also after a standstill", "[proc]") {
  RawWarden warden;
  warden.start_sleep();
  warden.lease(seconds{60});
  warden.stop();
  warden.lease(milliseconds{-1});
  warden.go_on();
  CHECK(warden.hears(ReportType::kFenced));
  CHECK(warden.hears(ReportType::kExited));
}

}  // namespace
}  // namespace ddprun::agent
