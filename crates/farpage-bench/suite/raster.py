"""GDAL: a raster in memory, warped to another projection, and made smaller."""

import numpy as np
from osgeo import gdal, osr

gdal.UseExceptions()
# What it would take of the machine's memory by itself: a twentieth.
gdal.SetCacheMax(64 << 20)
SIZE = 4000

utm, degrees = osr.SpatialReference(), osr.SpatialReference()
utm.ImportFromEPSG(32632)
degrees.ImportFromEPSG(4326)
image = gdal.GetDriverByName("MEM").Create("", SIZE, SIZE, 1, gdal.GDT_Float32)
image.SetGeoTransform((400_000, 30, 0, 5_600_000, 0, -30))
image.SetProjection(utm.ExportToWkt())
x = np.arange(SIZE, dtype=np.float32)
for y in range(0, SIZE, 100):
    rows = np.arange(y, y + 100, dtype=np.float32)[:, None]
    image.GetRasterBand(1).WriteArray(np.sin(x / 97) * 500 + np.floor(rows / 7) + x * rows % 13, 0, y)
print("made", image.GetRasterBand(1).Checksum())
warped = gdal.Warp("", image, format="MEM", dstSRS=degrees.ExportToWkt(), resampleAlg="bilinear",
                   warpMemoryLimit=64, errorThreshold=0.125)  # fmt: skip
print("warped", warped.RasterXSize, warped.RasterYSize, warped.GetRasterBand(1).Checksum())
small = gdal.Translate("", warped, format="MEM", width=1000, height=1000, resampleAlg="average")
print("small", small.GetRasterBand(1).Checksum())
slope = gdal.DEMProcessing("", image, "slope", format="MEM")
print("slope", slope.GetRasterBand(1).Checksum())
