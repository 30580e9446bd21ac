// SPDX-License-Identifier: Apache-2.0
// The document at GET /, made of the files beside this one by page.cmake. Pure.
#pragma once

#include <string_view>

namespace ddprun::rendezvous {

extern const std::string_view kStatusPage;
// Its Content-Security-Policy: its own script and style, and a connection to where it came from.
extern const std::string_view kStatusPagePolicy;

}  // namespace ddprun::rendezvous
