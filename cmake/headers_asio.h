// SPDX-License-Identifier: Apache-2.0
// Headers that most files with Asio include, precompiled if a build is made once
// (DDPRUN_BUILD_ONCE).
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/json.hpp>
#include <boost/variant2/variant.hpp>

#include "cmake/headers_std.h"
