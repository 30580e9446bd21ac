// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/png/canvas.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>

#include "common/error.h"
#include "common/log.h"
#include "common/unique_fd.h"

namespace ddprun::report {
namespace {

constexpr double kScale = 2, kMostSide = 4000;

bool is_rectangle(const std::vector<Point>& part) {
  return part.size() == 4 && part[0].y == part[1].y && part[1].x == part[2].x &&
         part[2].y == part[3].y && part[3].x == part[0].x;
}

cairo_status_t write_all(void* closure, const unsigned char* data, unsigned int size) {
  const int fd = *static_cast<const int*>(closure);
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return CAIRO_STATUS_WRITE_ERROR;
    data += written;
    size -= static_cast<unsigned int>(written);
  }
  return CAIRO_STATUS_SUCCESS;
}

}  // namespace

Canvas::Canvas(double width, double height) {
  if (!(width >= 1 && width <= kMostSide && height >= 1 && height <= kMostSide)) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("a picture of ", width, " by ", height, " is too large or too small"));
  }
  surface_.reset(cairo_image_surface_create(CAIRO_FORMAT_RGB24,
                                            static_cast<int>(std::ceil(width * kScale)),
                                            static_cast<int>(std::ceil(height * kScale))));
  cairo_.reset(cairo_create(surface_.get()));
  if (cairo_status(cairo_.get()) != CAIRO_STATUS_SUCCESS) {
    throw Error(ErrorCode::kSystem, cairo_status_to_string(cairo_status(cairo_.get())));
  }
  cairo_scale(cairo_.get(), kScale, kScale);
  cairo_set_line_join(cairo_.get(), CAIRO_LINE_JOIN_ROUND);
  set({1, 1, 1, 1});
  cairo_paint(cairo_.get());
}

void Canvas::set(const Colour& colour) {
  cairo_set_source_rgba(cairo_.get(), colour.red, colour.green, colour.blue, colour.opacity);
}

void Canvas::path(const std::vector<std::vector<Point>>& parts, bool closed) {
  cairo_new_path(cairo_.get());
  for (const auto& part : parts) {
    cairo_new_sub_path(cairo_.get());
    for (const Point& point : part) cairo_line_to(cairo_.get(), point.x, point.y);
    if (closed) cairo_close_path(cairo_.get());
  }
}

void Canvas::area(const Colour& colour, const std::vector<std::vector<Point>>& parts) {
  set(colour);
  // Cells that touch show no seam between them.
  const bool is_sharp = std::all_of(parts.begin(), parts.end(), is_rectangle);
  cairo_set_antialias(cairo_.get(), is_sharp ? CAIRO_ANTIALIAS_NONE : CAIRO_ANTIALIAS_DEFAULT);
  path(parts, true);
  cairo_fill(cairo_.get());
  cairo_set_antialias(cairo_.get(), CAIRO_ANTIALIAS_DEFAULT);
}

void Canvas::line(const Colour& colour, double width, bool dashed,
                  const std::vector<std::vector<Point>>& parts) {
  constexpr double kDashes[] = {5, 3};
  set(colour);
  cairo_set_line_width(cairo_.get(), width);
  cairo_set_dash(cairo_.get(), kDashes, dashed ? 2 : 0, 0);
  path(parts, false);
  cairo_stroke(cairo_.get());
}

void Canvas::text(const Colour& colour, double size, bool bold, Anchor anchor, Point at,
                  const std::string& text) {
  set(colour);
  cairo_select_font_face(cairo_.get(), "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                         bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(cairo_.get(), size);
  cairo_text_extents_t extents{};
  cairo_text_extents(cairo_.get(), text.c_str(), &extents);
  const double share = anchor == Anchor::kStart ? 0 : anchor == Anchor::kMiddle ? 0.5 : 1;
  cairo_move_to(cairo_.get(), at.x - share * extents.x_advance, at.y);
  cairo_show_text(cairo_.get(), text.c_str());
}

void Canvas::write(const std::string& path) {
  if (cairo_status(cairo_.get()) != CAIRO_STATUS_SUCCESS) {
    throw Error(ErrorCode::kSystem, cairo_status_to_string(cairo_status(cairo_.get())));
  }
  const std::string part = path + ".part";
  const UniqueFd fd(
      ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd) throw_system_error("can't write " + part, errno);
  int number = fd.get();
  errno = 0;
  const bool is_written =
      cairo_surface_write_to_png_stream(surface_.get(), write_all, &number) == CAIRO_STATUS_SUCCESS;
  if (is_written && ::rename(part.c_str(), path.c_str()) == 0) return;
  const int why = errno != 0 ? errno : ENOMEM;
  ::unlink(part.c_str());
  throw_system_error("can't write " + path, why);
}

}  // namespace ddprun::report
